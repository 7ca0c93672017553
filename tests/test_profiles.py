"""Profiles of conf/ compose to valid parameters, in one way."""

from pathlib import Path

import pytest

from slim_rl.config import checked, composed
from slim_rl.core.errors import UserError
from slim_rl.games import load_games, policy_seats

ROOT = Path(__file__).parents[1]
PROFILES = sorted(path.stem for path in (ROOT / "conf").glob("*.yaml"))


@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_a_profile_has_valid_parameters(profile, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = checked(composed(profile), "params.yaml")
    assert all(policy_seats(game) for game in load_games(config.games, config.seed).values())


@pytest.fixture
def write(tmp_path, monkeypatch):
    """write(name, text): params.yaml or a profile."""
    monkeypatch.chdir(tmp_path)

    def file(name: str, text: str) -> None:
        path = Path("params.yaml" if name == "params" else f"conf/{name}.yaml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    file("plain", "games: {kuhn: {max_turns: 6, eval_count: 5}, tictactoe: {}}\ntrain: {steps: 6, minibatches: 2}\n")
    file("above", "profile: plain\ngames: {kuhn: {eval_count: 9}}\ntrain: {steps: 9}\n")
    return file


@pytest.mark.parametrize(
    ("params", "profile", "settings", "games", "train"),
    [
        ("profile: plain", None, {}, {"kuhn": {"max_turns": 6, "eval_count": 5}, "tictactoe": {}}, (6, 2)),
        ("profile: plain\ntrain: {steps: 3}", None, {}, {"kuhn": {"max_turns": 6, "eval_count": 5}, "tictactoe": {}}, (3, 2)),
        ("profile: above", None, {}, {"kuhn": {"max_turns": 6, "eval_count": 9}}, (9, 2)),
        ("profile: plain\ngames: {kuhn: }", None, {}, {"kuhn": {"max_turns": 6, "eval_count": 5}}, (6, 2)),
        ("profile: plain\ntrain: {steps: 3, minibatches: 4}", "above", {}, {"kuhn": {"max_turns": 6, "eval_count": 9}}, (9, 2)),
        ("games: {kuhn: {train_count: 8}, tictactoe: }", "above", {}, {"kuhn": {"train_count": 8, "max_turns": 6, "eval_count": 9}}, (9, 2)),
        ("profile: plain", "above", {"train.steps": 1, "games.kuhn.max_turns": 4}, {"kuhn": {"max_turns": 4, "eval_count": 9}}, (1, 2)),
        ("profile: plain", None, {"profile": "above"}, {"kuhn": {"max_turns": 6, "eval_count": 9}}, (9, 2)),
    ],
)  # fmt: skip
def test_each_layer_lies_over_those_before_it(write, params, profile, settings, games, train):
    write("params", params)
    values = composed(profile, settings)
    assert values["games"] == games and "profile" not in values
    assert (values["train"]["steps"], values["train"]["minibatches"]) == train


def test_a_setting_may_name_a_game_by_its_import_path(write):
    write("params", "games: {my.cards.game: {max_turns: 3}}")
    assert composed(settings={"games.my.cards.game.max_turns": 4})["games"] == {"my.cards.game": {"max_turns": 4}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{selection: dialop}", dict(p_agent=0.4, p_rough=0, p_partner=0.4, scale_range=[1, 10], stake=1.25, patience=None)),
        ("{selection: dialop, p_agent: 0.1}", dict(p_agent=0.1, p_partner=0.4, max_questions=5, turns_told=False)),
        ("{selection: stakes}", dict(p_agent=0.2, p_rough=0, stake=1.4, patience=None, max_questions=5)),
    ],
)  # fmt: skip
def test_a_preset_is_whole_over_the_layers_below_it(write, text, expected, monkeypatch):
    write("asking", (ROOT / "conf/asking.yaml").read_text())
    write("params", f"profile: asking\ngames: {{matching: {text}}}")
    game = checked(composed(), "params.yaml").model_dump(mode="json")["games"]["matching"]
    assert {name: game[name] for name in expected} == expected


def test_the_partner_of_the_documents_plays_the_game_of_each_profile(write):
    text = (ROOT / "docs/operations.md").read_text()
    snippet = text.split("```yaml\n")[1].split("```")[0]
    for profile in ("asking", "priced"):
        for below in PROFILES:
            write(below, (ROOT / f"conf/{below}.yaml").read_text())
        write("params", f"profile: {profile}\n")
        alone = checked(composed(), "").games["matching"]
        write("params", f"profile: asking\n{snippet}")
        game = checked(composed(profile), "").games["matching"]
        assert game == alone.model_copy(update={"seating": ("policy", "service:partner")})


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("params", "profile: khun", ["khun", "above, plain"]),
        ("plain", "profile: above", ["conf/", "above -> plain"]),
        ("params", "train: [1", ["params.yaml", "YAML"]),
        ("above", "- train", ["conf/above.yaml", "list"]),
        ("params", "profile: above\ntrain: {steps: 1}\ngames: {}\ntrain: {steps: 2}", ["params.yaml", "train", "line 4"]),
        ("above", "train: {steps: 1, steps: 2}", ["conf/above.yaml", "steps"]),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_composed_is_named(write, name, text, named):
    write("params", "profile: above")
    write(name, text)
    with pytest.raises(UserError) as error:
        composed()
    assert all(part in str(error.value) for part in named) and "\n" not in str(error.value)
