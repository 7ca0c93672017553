"""Every profile in conf/ composes with params.yaml to valid parameters."""

from pathlib import Path

import pytest
import yaml

from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.games import load_games, policy_seats
from stages.workspace import composed

ROOT = Path(__file__).parents[1]
PROFILES = sorted(path.stem for path in (ROOT / "conf").glob("*.yaml"))
PARAMETERS = (ROOT / "params.yaml").read_text()


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_a_profile_has_valid_parameters_and_all_that_dvc_follows(profile):
    values = composed(yaml.safe_load(PARAMETERS), profile)
    config = Config.model_validate(values)
    assert all(policy_seats(game) for game in load_games(config.games, config.seed).values())
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].values()
    for name in {name for stage in stages for name in stage["params"]}:
        section, _, rest = name.partition(".")
        assert section in values and (not rest or rest in values[section])


def test_a_profile_replaces_the_games_and_merges_everything_else():
    own = yaml.safe_load(PARAMETERS)
    [name] = own["games"]
    own["games"][name]["train_count"], own["train"]["kl_coefficient"] = 1500, 0.1
    merged = composed(own, "kuhn")
    assert list(merged["games"]) == ["kuhn"]
    assert merged["train"]["kl_coefficient"] == 0.12 and merged["train"]["steps"] == 600
    assert merged["train"]["backend"] == own["train"]["backend"] and merged["seed"] == own["seed"]
    both_seats = composed(own, "selfplay")["games"][name]
    assert both_seats["train_count"] == 1500 and both_seats["seating"] == ["policy", "policy"]


def test_a_profile_that_does_not_exist():
    with pytest.raises(UserError, match=r"There is no profile khun; conf/ has .*kuhn, .*tictactoe"):
        composed({}, "khun")
