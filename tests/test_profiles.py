"""Every profile in conf/ can take the place of params.yaml."""

from pathlib import Path

import pytest
import yaml

from slim_rl.config import load_config
from slim_rl.games import game_kind
from slim_rl.seating import policy_seats

ROOT = Path(__file__).parents[1]
PROFILES = sorted(path for path in (ROOT / "conf").glob("*.yaml") if path.name != "prices.yaml")


@pytest.mark.parametrize("path", [ROOT / "params.yaml", *PROFILES], ids=lambda path: path.stem)
def test_a_profile_has_every_parameter_that_dvc_follows(path):
    config = load_config(path)
    assert policy_seats(config, game_kind(config))
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].values()
    values, missing = yaml.safe_load(path.read_text()), []
    for name in {name for stage in stages for name in stage.get("params", ())}:
        section, _, rest = name.partition(".")
        if section not in values or (rest and rest not in values[section]):
            missing.append(name)
    assert missing == []
