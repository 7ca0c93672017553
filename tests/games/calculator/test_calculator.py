"""The calculator as a game: calls, answers, rewards, and demonstrations that read as play does."""

import asyncio

import pytest

from slim_rl.core.episode import Episode
from slim_rl.core.message import Message, ToolCall, said
from slim_rl.engines.engine import Sampling
from slim_rl.games import game_parameters, load_games
from slim_rl.games.calculator.arithmetic import evaluate, written
from slim_rl.players.policy import PolicyPlayer
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.play import play
from slim_rl.training.demonstrations import encode_tree
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer
from tests.babbler import Scripted


def taskset(**parameters):
    given = {"calculator": game_parameters("calculator", parameters)}
    return load_games(given, 0)["calculator"].taskset


def task_of(sums, purpose="train"):
    return next(sums.tasks(purpose, 1))


def answer_of(task):
    return written(evaluate(task.state["expression"]))


def played(sums, *messages):
    game, read = sums.load(task_of(sums)), []

    async def go():
        await game.observe("solver")
        for message in messages:
            await game.step(message)
            read.extend(await game.observe("solver"))

    asyncio.run(go())
    return game, [message.text for message in read]


def calculate(**arguments):
    return Message("assistant", tool_calls=(ToolCall("calculate", arguments),))


def test_a_call_calculates_and_the_exact_number_earns_1():
    sums = taskset()
    game, read = played(sums, calculate(expression="37 * 48 - 6"), said(answer_of(task_of(sums))))
    assert read == ["1770"]
    assert (game.rewards(), game.turn, game.metrics()["correct"]) == ({"solver": 1.0}, None, 1)


@pytest.mark.parametrize(
    "change", [lambda a: str(int(a) + 1), lambda a: f"It is {a}.", lambda a: "", lambda a: f"{a}e0"]
)
def test_anything_else_earns_0(change):
    sums = taskset()
    game, _ = played(sums, said(change(answer_of(task_of(sums)))))
    assert game.rewards() == {"solver": 0.0}


def test_a_call_costs_its_price_also_a_wrong_one():
    sums = taskset(call_price=0.25)
    calls = Message("assistant", tool_calls=(ToolCall("calculate", {"expression": "1"}), ToolCall("search")))
    game, _ = played(sums, calls, said(answer_of(task_of(sums))))
    assert game.rewards() == {"solver": 0.5}


@pytest.mark.parametrize(
    "arguments", [{}, {"expression": 7}, {"expression": "1 +"}, {"expression": "1", "more": 1}, {"x": "1"}]
)
def test_wrong_arguments_are_told_and_counted(arguments):
    game, read = played(taskset(), calculate(**arguments))
    assert read[0].startswith("Error: ") and game.turn == "solver"
    assert game.metrics()["calls.refused"] == 1


def test_the_control_tells_the_answer_in_the_prompt():
    sums = taskset(answer_shown=True)
    task = task_of(sums)
    assert f"= {answer_of(task)}." in task.prompt
    assert f"= {answer_of(task)}." not in task_of(taskset()).prompt


def test_sums_differ_by_purpose_and_are_too_many_to_learn():
    every = {
        purpose: [t.state["expression"] for t in taskset().tasks(purpose, 500)] for purpose in ("train", "evaluate")
    }
    assert len(set(every["train"])) > 490 and every["train"] != every["evaluate"]
    values = [evaluate(expression) for expression in every["train"]]
    assert max(values.count(value) for value in values) <= 10, "one answer would often be right"


def test_players_without_a_model():
    sums = taskset()
    rewards = {}
    for name in ("calls", "guesses"):
        episodes = []
        for task in sums.tasks("train", 20):
            game = sums.load(task)
            seated = {"solver": sums.player(name, game, "solver", 0)}
            episodes.append(asyncio.run(play(Episode(name, task.game_id), game, seated)))
        rewards[name] = [episode.rewards["solver"] for episode in episodes]
        assert {episode.metrics["calls"] for episode in episodes} == {float(name == "calls")}
    assert rewards["calls"] == [1.0] * 20 and sum(rewards["guesses"]) <= 1
    with pytest.raises(ValueError, match="calls and guesses"):
        sums.player("bayes", sums.load(task_of(sums)), "solver", 0)


@pytest.fixture(scope="module")
def shown():
    sums = taskset()
    return [(task, sums.demonstrate(task, "solver")) for task in sums.tasks("demonstrations", 64)]


@pytest.fixture(scope="module")
def tokenizer(shown):
    return small_tokenizer(chat_corpus(demonstration for _, demonstration in shown))


def test_a_demonstration_is_the_sequence_that_play_makes_of_it(shown, tokenizer):
    """Tool schemas, calls and results: token for token."""
    renderer, sums = Renderer(tokenizer, thinking=False), taskset()
    for task, demonstration in shown[:8]:
        turns = [renderer.turn(text) for text in (*demonstration.turns, demonstration.closings[-1])]
        policy = PolicyPlayer(Scripted(turns), renderer, Sampling(64))
        episode = asyncio.run(play(Episode("e", task.game_id), sums.load(task), {"solver": policy}))
        assert episode.rewards == {"solver": 1.0} and episode.metrics["calls"] == 1
        tree = encode_tree(demonstration, renderer, stop_probability=0.5)
        path = tree.ids[tree.branches == 0].tolist()
        closing = tree.ids[tree.branches == tree.branches.max()].tolist()
        assert episode.traces["solver"].token_ids == path + closing


def test_nothing_in_a_demonstration_is_spelled_in_bytes(shown, tokenizer):
    """The tokenizer has seen schemas, calls and results as they are encoded."""
    renderer = Renderer(tokenizer, thinking=False)
    ids = [token for _, demonstration in shown for token in encode_tree(demonstration, renderer, 0.5).ids.tolist()]
    assert [t for t in tokenizer.convert_ids_to_tokens(sorted(set(ids))) if t.startswith("<0x")] == []


def test_what_the_tiny_model_must_copy_counts_in_full_and_is_made_of_tokens_that_it_sees_often(shown, tokenizer):
    """Else it never learns to give the sum to the tool and to repeat the result, and no call earns anything."""
    renderer = Renderer(tokenizer, thinking=False)
    for _, demonstration in shown:
        weights = encode_tree(demonstration, renderer, stop_probability=0.75).weights.tolist()
        choices = [weight for weight in weights if weight < 1]  # to call, to answer at once, to answer after the call
        assert choices == pytest.approx([0.25, 0.75, 0.75])
    numbers = [token for token in tokenizer.get_vocab() if token.strip().isdecimal()]
    assert max(map(int, numbers)) <= 100
