"""The criteria of the verdict. Their numbers stand in one versioned file, how they are applied in `verdict.py`."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import yaml

CRITERIA = "criteria.json"
"""Beside an evaluation's episodes: which criteria stood when it was played."""


@dataclass(frozen=True)
class Criteria:
    """What stands in `criteria.yaml`."""

    version: int
    fixed: datetime
    sha256: str
    """Of both files."""
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
    text, applied = (Path(__file__).with_name(name).read_bytes() for name in ("criteria.yaml", "verdict.py"))
    given = yaml.safe_load(text)
    each = given["criteria"]
    values = {name: one["value"] for name, one in each.items()}
    meanings = {name: one["meaning"] for name, one in each.items()}
    fixed = given["fixed"].astimezone(UTC)
    return Criteria(given["version"], fixed, hashlib.sha256(text + applied).hexdigest(), meanings, **values)
