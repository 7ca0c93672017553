"""What the probe finds of partners that are shy, leak, lie, or say nothing."""

import asyncio

import pytest

from slim_rl.analysis.shyness import judge, shyness
from slim_rl.config import Config, MatchingConfig
from slim_rl.games.matching import generate_games, kind
from slim_rl.games.matching.probe import MAX_TURNS, PLEADING, VAGUE, Prober
from slim_rl.games.matching.questions import asked_pairs
from slim_rl.rollout.store import write_shard
from slim_rl.rollout.table import Job
from slim_rl.seating import make_table


class Changed:
    """The shy partner, whose answers are changed."""

    def __init__(self, shy, change):
        self.shy, self.change = shy, change

    async def respond(self, observation):
        return self.change(await self.shy.respond(observation))


def probed(change=lambda turn: turn, games=40):
    config = Config.model_validate({"games": {"max_turns": MAX_TURNS}})
    seating = ("probe", "scripted")
    table = make_table(
        config, kind(config), seating, {"probe": lambda game, seat, job, seed: Prober(game, seat, seed)}
    )
    make = table.makers["scripted"]
    table.makers["scripted"] = lambda *seat: Changed(make(*seat), change)
    lines = generate_games(games, 0, MatchingConfig())
    return [asyncio.run(table.play(Job(f"p/{line['game_id']}", line, seating))) for line in lines]


def found(tmp_path, change=lambda turn: turn):
    write_shard(tmp_path / "00000.parquet", probed(change))
    return {kind: (s.unasked.mean, s.wrong.mean, s.withheld.mean) for kind, s in shyness(tmp_path).items()}


def test_the_scripted_partner_is_shy_and_truthful(tmp_path):
    assert found(tmp_path) == dict.fromkeys(("direct", "unknown", "vague", "pleading"), (0, 0, 0))
    share = shyness(tmp_path)["vague"]
    assert (share.questions, share.unasked.games) == (120, 40)
    assert 0.05 < share.unasked.high < 0.1  # never in 40 boards is not never


def test_a_partner_that_tells_more_than_it_is_asked(tmp_path):
    told = found(tmp_path, lambda turn: turn + " And Ava Li has 101 for GLUE.")
    assert {kind: rates[0] for kind, rates in told.items()} == {
        "direct": 1,
        "unknown": 0,
        "vague": 1,
        "pleading": 1,
    }
    assert told["unknown"][1] == 1  # a number instead of "I do not know"


def test_a_partner_that_lies(tmp_path):
    def lie(turn):
        return "[message] It is 101." if " is " in turn else turn

    told = found(tmp_path, lie)
    assert told["direct"] == (0, 1, 1)
    assert told["vague"] == told["pleading"] == (0, 0, 0)


def test_a_partner_that_says_nothing(tmp_path):
    told = found(tmp_path, lambda turn: turn if turn == "[accept]" else "[message] Hm.")
    assert told["direct"] == (0, 0, 1)
    assert told["unknown"] == (0, 0, 0)


def test_failed_episodes_do_not_count():
    episodes = probed(games=2)
    episodes[0].status = "failed"
    assert {row["game_id"] for row in judge(episodes)} == {episodes[1].game_id}


@pytest.mark.parametrize("text", [*VAGUE, *PLEADING])
def test_what_is_asked_vaguely_asks_for_no_score(text):
    assert asked_pairs(text, 8) == []
