"""What goes to the engine is what is trained on: over renderers, seats, tools and forced play.

`tests/slime/test_hooks.py` checks the same of SLIME's samples, for each of SEATINGS.
"""

import asyncio
from functools import partial

import pytest

from slim_rl.games import load_games
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.seating import PolicyRules, Request, Seating, under
from slim_rl.studies.asking.forced import as_many, asks_on, asks_planned, asks_unknown, forbidden, given
from slim_rl.studies.calls.plan import forced
from tests import echo
from tests.babbler import SENSIBLE, Babbler, check_tokens
from tests.settings import setting
from tests.studies.asking import made

SAID = {
    "matching": (*SENSIBLE, "[message] It is 50.", "[accept]", "[reject]"),
    "tictactoe": tuple(f"[{cell}]" for cell in range(9)),
    "kuhn": ("[check]", "[bet]", "[fold]", "[call]"),
    "tests.echo": echo.SPOKEN,
}
FREE = {e.game_id: e for e in made.play(setting("matching").game, "other", made.Policy(2), 8, purpose="train")}


class Talker(Babbler):
    """Mostly sensible."""

    max_context_tokens = 20_000
    moods = 8


SEATINGS = [
    ("matching", ("policy", "scripted")),
    ("kuhn", ("random", "policy")),
    ("matching", ("policy", "policy")),
    ("tictactoe", ("policy", "policy")),
    ("kuhn", ("policy", "policy")),
    ("tests.echo", ("policy",)),
]


def language(game, seating):
    """A tokenizer for the game, and the game."""
    if game == "tests.echo":
        return echo.echo_tokenizer(), load_games({game: echo.Parameters(max_turns=6)}, 0)[game]
    return setting(game, seating).tokenizer, setting(game, seating).game


@pytest.mark.parametrize("thinking", [False, True], ids=["", "thinking"])
@pytest.mark.parametrize(
    ("game", "seating", "arm"),
    [
        *((game, seating, None) for game, seating in SEATINGS),
        ("tests.echo", ("policy",), partial(forced, 0)),
        ("matching", ("policy", "scripted"), forbidden),
        ("matching", ("policy", "scripted"), asks_on),
        ("matching", ("policy", "scripted"), asks_unknown),
        ("matching", ("policy", "scripted"), asks_planned),
        ("matching", ("policy", "scripted"), partial(as_many, FREE)),
        ("matching", ("policy", "scripted"), partial(given, FREE)),
    ],
)
def test_each_sampled_token_is_trained_in_one_sequence_and_no_other(game, seating, arm, thinking):
    tokenizer, named = language(game, seating)
    renderer = Renderer(tokenizer, thinking=thinking, max_tool_tokens=50)
    taskset, ended, turns = named.taskset, 0, 0
    tasks = list(taskset.tasks("train", 8))
    for seed in range(24):
        engine = Talker(tokenizer, seed, SAID[game])
        maker = PolicyRules(renderer, max_turn_tokens=60, temperature=1.0).maker(engine)
        request = Request("e", game, tasks[seed % 8], seating)
        episode = asyncio.run(Seating({game: named}, {"policy": under(arm, maker)}, seed=0).play(request))
        seats = [seat for seat, player in episode.seating.items() if player == "policy"]
        assert list(episode.traces) == seats
        check_tokens(engine, episode, taken_back=arm is not None)
        for seat in seats:
            read = [turn.observation for turn in episode.turns if turn.seat == seat]
            tools = taskset.load(request.task).tools(seat)
            opening = renderer.opening(read[0], tools) if read else []
            assert episode.traces[seat].token_ids[: len(opening)] == opening
        ended, turns = ended + (episode.status == "completed"), turns + len(episode.turns)
    assert turns > 24 and (
        ended or arm or set(seating) != {"policy"}
    )  # games that end by their rules, not errors alone
