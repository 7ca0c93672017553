"""Games with tools: what is run, what is answered to a malformed call, and what is counted."""

import asyncio

import pytest

from slim_rl.core.game import Task, TextGame
from slim_rl.core.message import Message, ToolCall, said
from tests.echo import PROMPT, SYSTEM, Parameters, taskset


def game(max_turns=5):
    return taskset(Parameters(max_turns=max_turns), 0, "").load(Task("t", state={"word": "river"}))


def turn(*calls):
    return Message("assistant", "", calls)


def played(game, *messages):
    """What the solver reads before each turn, and after the last one."""

    async def play():
        read = [await game.observe("solver")]
        for message in messages:
            await game.step(message)
            read.append(await game.observe("solver"))
        return read

    return asyncio.run(play())


def test_a_call_is_run_and_a_turn_without_one_is_the_answer():
    one = game()
    read = played(one, turn(ToolCall("look")), said("river"))
    assert read == [
        (Message("system", SYSTEM), Message("user", PROMPT)),
        (Message("tool", "The word is river."),),
        (),
    ]
    assert (one.turn, one.truncated, one.rewards()) == (None, False, {"solver": 1.0})
    assert one.metrics()["turn_count"] == 2 and one.metrics()["calls"] == 1


def test_several_calls_in_a_turn_are_answered_in_their_order():
    calls = [ToolCall("echo", {"text": "broken: \ud83d."}), ToolCall("look"), ToolCall("echo", {"text": "last"})]
    read = played(game(), turn(*calls))
    assert [message.text for message in read[1]] == ["broken: ?.", "The word is river.", "last"]
    assert {message.role for message in read[1]} == {"tool"}


def test_a_text_game_reads_a_call_as_text():
    heard = []

    class Reads(TextGame):
        turn, rewards, read, move = "a", None, None, staticmethod(heard.append)

    asyncio.run(Reads().step(Message("assistant", "I look.", (ToolCall("look", raw='{"name": "look"}'),))))
    assert heard == ['I look.\n{"name": "look"}']


@pytest.mark.parametrize(
    ("call", "status", "told"),
    [
        (ToolCall("", status="invalid_json", raw="{"), "invalid_json", "not valid JSON"),
        (ToolCall("", status="unclosed_block", raw="{"), "unclosed_block", "does not end"),
        (ToolCall("", status="missing_name", raw="{}"), "missing_name", "names no tool"),
        (ToolCall("search"), "unknown_tool", "no tool of this name"),
    ],
)
def test_a_malformed_call_is_answered_and_counted_and_the_others_are_run(call, status, told):
    one = game()
    read = played(one, turn(call, ToolCall("look")))
    assert read[1][0].text.startswith("Error: ") and told in read[1][0].text
    assert read[1][1].text == "The word is river."
    assert one.turn == "solver"
    metrics = one.metrics()
    assert metrics["calls"] == 2
    assert {name: count for name, count in metrics.items() if "." in name and count} == {f"calls.{status}": 1}


@pytest.mark.parametrize("max_turns", [1, 2])
def test_a_game_that_runs_out_of_turns_is_truncated_unless_the_last_one_is_the_answer(max_turns):
    calls = [turn(ToolCall("look"))] * (max_turns - 1)
    for last, truncated in ((turn(ToolCall("look")), True), (said("apple"), False)):
        one = game(max_turns)
        played(one, *calls, last)
        assert (one.turn, one.truncated, one.rewards()) == (None, truncated, {"solver": 0.0})
