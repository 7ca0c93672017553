"""The criteria of the verdict. Their numbers stand in one versioned file, `criteria.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Criteria:
    """What stands in `criteria.yaml`."""

    version: int
    fixed: datetime
    meanings: Mapping[str, str]
    min_games: float
    min_room: float
    max_leak_share: float
    min_cells: float
    min_share: float
    min_choice: float
    min_follow: float
    min_rank: float


@cache
def criteria() -> Criteria:
    file = yaml.safe_load(Path(__file__).with_name("criteria.yaml").read_bytes())
    each = file["criteria"]
    values = {name: one["value"] for name, one in each.items()}
    meanings = {name: one["meaning"] for name, one in each.items()}
    return Criteria(file["version"], file["fixed"].astimezone(UTC), meanings, **values)
