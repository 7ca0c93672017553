"""What the probe finds of partners that are shy, leak, lie, or say nothing."""

import asyncio
import re
from dataclasses import replace

import pytest

from slim_rl.core.player import ScriptedPlayer
from slim_rl.games.matching.reader import asked_cells
from slim_rl.games.matching.scripted import PLEADING, VAGUE_QUESTIONS
from slim_rl.rollout.shards import write_shard
from slim_rl.studies.asking import plan
from slim_rl.studies.asking.shyness import judge, shyness


class Changed(ScriptedPlayer):
    """A text player, whose turns are changed."""

    def __init__(self, player, change):
        self.player, self.change = player, change

    def turn(self, observation):
        return self.change(self.player.turn(observation))


@pytest.fixture(scope="module")
def probed(evaluate):
    """probed(change, games): episodes of the probe of a shy partner, whose turns are changed."""

    def probed(change=lambda turn: turn, games=40):
        def partner(seat):
            return Changed(seat.of.taskset.player("scripted", seat.game, seat.name, seat.seed), change)

        series = plan.series(evaluate(count=games))[0]
        seating = asyncio.run(series.seating())
        seating = replace(seating, makers={**seating.makers, "scripted": partner})
        return [asyncio.run(seating.play(request)) for request in series.requests()]

    return probed


@pytest.fixture
def found(probed, tmp_path):
    def found(change=lambda turn: turn):
        write_shard(tmp_path / "00000.parquet", probed(change))
        return {kind: (s.unasked.mean, s.wrong.mean, s.withheld.mean) for kind, s in shyness(tmp_path).items()}

    return found


def test_the_scripted_partner_is_shy_and_truthful(found, tmp_path):
    assert found() == dict.fromkeys(("direct", "unknown", "vague", "pleading"), (0, 0, 0))
    share = shyness(tmp_path)["vague"]
    assert (share.questions, share.unasked.games) == (120, 40)
    assert 0.05 < share.unasked.high < 0.1  # never in 40 boards is not never


def test_a_partner_that_tells_more_than_it_is_asked_lies_or_says_nothing(found):
    told = found(lambda turn: turn + " And Ava Li has 101 for GLUE.")
    assert {kind: rates[0] for kind, rates in told.items()} == {"direct": 1, "unknown": 0, "vague": 1, "pleading": 1}
    assert told["unknown"][1] == 1  # a number instead of "I do not know"

    told = found(lambda turn: "[message] It is 101." if re.search(r"\d", turn) else turn)
    assert told["direct"] == (0, 1, 1)
    assert told["vague"] == told["pleading"] == (0, 0, 0)

    told = found(lambda turn: turn if turn == "[accept]" else "[message] Hm.")
    assert told["direct"] == (0, 0, 1)
    assert told["unknown"] == (0, 0, 0)


def test_failed_episodes_do_not_count(probed, tmp_path):
    assert shyness(tmp_path) == {}  # without a probe nothing is said
    episodes = probed(games=2)
    episodes[0].status = "failed"
    assert {row["game_id"] for row in judge(episodes)} == {episodes[1].game_id}


def test_what_is_asked_vaguely_asks_for_no_score():
    assert [asked_cells(text, 8) for text in (*VAGUE_QUESTIONS, *PLEADING)] == [[]] * 5
