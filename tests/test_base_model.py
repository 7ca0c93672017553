"""The checkpoint that training starts from: what it is shown, and what it can be made from."""

import pandas as pd
import pytest
import yaml

from slim_rl.core.errors import UserError
from slim_rl.core.game import Task, Taskset
from slim_rl.core.parameters import GameParameters
from slim_rl.engines.model import load_model
from slim_rl.games import NamedGame, load_games
from slim_rl.games.kuhn import Parameters as Kuhn
from slim_rl.games.matching import Parameters as Matching
from slim_rl.training.checkpoint import save_model
from slim_rl.training.demonstrations import Demonstrations
from slim_rl.training.tiny import tiny_qwen
from stages import base_model
from tests.checkpoints import chat_checkpoint
from tests.settings import miniature


@pytest.fixture(scope="module")
def both_seats():
    return load_games({"matching": Matching(seating=("policy", "policy"))}, seed=0)


def test_the_last_seat_is_shown_alone_first(both_seats):
    shown = Demonstrations(both_seats, count=12, last_seat=6)
    taskset = both_seats["matching"].taskset
    first, last = taskset.seats
    made = list(taskset.tasks("demonstrations", 12))
    tasks = made[6:] + made[:6]  # lessons begin where the first seat is shown
    seats = [last] * 6 + [first, last] * 3
    assert [shown[n] for n in range(len(shown))] == list(map(taskset.demonstrate, tasks, seats))
    # A tokenizer made from these has the words of both seats.
    assert shown.alternating(4) == list(map(taskset.demonstrate, tasks[::3], [first, last] * 2))
    assert len(shown.alternating(100)) == 12


def test_several_games_are_shown_in_the_ratio_of_their_weights():
    games = load_games({"matching": Matching(size=2), "kuhn": Kuhn(weight=3)}, seed=0)
    shown = Demonstrations(games, count=8, last_seat=0)
    counts = {"kuhn": 6, "matching": 2}
    tasks = {name: iter(game.taskset.tasks("demonstrations", counts[name])) for name, game in games.items()}
    seats = iter(["first", "second"] * 3)
    expected = [
        games["kuhn"].taskset.demonstrate(next(tasks["kuhn"]), next(seats))
        if "Kuhn" in shown[n].observations[0]
        else games["matching"].taskset.demonstrate(next(tasks["matching"]), "player-1")
        for n in range(8)
    ]
    assert shown.alternating(8) == expected
    assert sum("Kuhn" in d.observations[0] for d in expected) == counts["kuhn"]
    assert games["kuhn"].taskset.words and shown.words == []  # matching is cut between all words, so all are


class Quiz(Taskset):
    """A taskset that does not demonstrate."""

    seats = ("solver",)

    def tasks(self, purpose, count):
        yield from (Task(f"q{n}", "why?") for n in range(count))

    def load(self, task):
        raise NotImplementedError


def test_a_game_without_demonstrations_cannot_make_a_tiny_model():
    quiz = NamedGame("my.quiz", GameParameters(), Quiz(GameParameters(), 0))
    with pytest.raises(UserError, match=r"my\.quiz has no demonstrations, so model\.base cannot be tiny"):
        Demonstrations({"my.quiz": quiz}, count=8, last_seat=0).alternating(1)


def write(tmp_path, monkeypatch, **changes):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(miniature(**changes)))


def test_a_tiny_model_knows_the_words_of_its_game_alone(tokenizer, demonstrations, shown):
    told = [message.text for said in demonstrations for i in range(len(said.observations)) for message in said.read(i)]
    spoken = [text for said in demonstrations for text in (*said.turns, *filter(None, said.closings))]
    known = " ".join([*told, *spoken, *shown.words, "user", "assistant"])
    words = [piece.strip() for piece in tokenizer.get_vocab() if piece.strip().isalpha()]
    assert [word for word in words if word not in known] == []


def test_a_checkpoint_given_by_its_path_is_the_base_model(tmp_path, model, tokenizer, monkeypatch, run_stage):
    save_model(tmp_path / "mine", model, tokenizer)
    write(tmp_path, monkeypatch, model={"base": str(tmp_path / "mine")})
    run_stage("base_model")
    loaded, _ = load_model(base_model.OUTPUT)
    assert all((a == b).all() for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


def test_a_checkpoint_is_warm_started_if_asked_for(tmp_path, model, tokenizer, monkeypatch, run_stage):
    save_model(tmp_path / "mine", model, tokenizer)
    warm = {"checkpoint": True, "demonstrations": 12, "batch": 4}
    write(tmp_path, monkeypatch, model={"base": str(tmp_path / "mine"), "precision": "fp32"}, warmstart=warm)
    run_stage("base_model")
    loaded, _ = load_model(base_model.OUTPUT)  # in bf16 a norm may be rounded to what it was
    assert not any((a == b).all() for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    measured = pd.read_csv(base_model.OUTPUT / "warmstart.csv")
    assert measured["step"].tolist() == [0, 1, 2, 3] and "right_after_0" in measured


def test_a_checkpoint_sees_games_of_any_length_from_the_start_and_is_measured_on_them(
    tmp_path, model, tokenizer, monkeypatch, run_stage
):
    given = []

    async def record(*arguments, **_):
        given.extend(arguments)
        return []

    monkeypatch.setattr(base_model, "imitate", record)
    save_model(tmp_path / "mine", model, tokenizer)
    warm = {"checkpoint": True, "demonstrations": 640, "batch": 8}
    write(tmp_path, monkeypatch, model={"base": str(tmp_path / "mine")}, warmstart=warm)
    run_stage("base_model")
    _, _, batch, _, held_out = given
    first_quarter = [tree for step in range(20) for tree in batch(step)]
    assert len({int(tree.branches.max()) for tree in first_quarter}) > 2
    assert sum(max(turns) >= 2 for turns, _ in held_out) >= 16


def test_a_game_too_long_for_a_checkpoint(tmp_path, tokenizer, monkeypatch, run_stage):
    save_model(tmp_path / "mine", tiny_qwen(tokenizer, max_context_tokens=64, seed=0), tokenizer)
    write(tmp_path, monkeypatch, model={"base": str(tmp_path / "mine")}, warmstart={"checkpoint": True})
    with pytest.raises(UserError, match=r"A game of \d+ tokens is too long for .*mine, whose context is 64 tokens"):
        run_stage("base_model")
    assert not base_model.OUTPUT.exists()


def test_a_checkpoint_without_a_chat_template_is_refused_before_it_is_copied(tmp_path, monkeypatch, run_stage):
    folder = chat_checkpoint(tmp_path / "mine", "smollm2")
    (folder / "chat_template.jinja").unlink()
    write(tmp_path, monkeypatch, model={"base": str(folder)})
    with pytest.raises(UserError, match="tokenizer has no chat template"):
        run_stage("base_model")
    assert not base_model.OUTPUT.exists()


def test_a_game_too_long_for_the_tiny_model(tmp_path, monkeypatch, run_stage):
    write(tmp_path, monkeypatch, model={"context_tokens": 64})
    with pytest.raises(UserError, match=r"A game of \d+ tokens is too long .* Raise model\.context_tokens"):
        run_stage("base_model")
    assert not base_model.OUTPUT.exists()
