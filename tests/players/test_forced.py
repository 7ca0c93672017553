"""A rule around a player that is no model: it can be told what to say, and a rule for how to speak is refused."""

import asyncio

import pytest

from slim_rl.core.errors import UserError
from slim_rl.core.message import heard, said
from slim_rl.core.player import Constraint, ScriptedPlayer
from slim_rl.players.forced import Forced


class Counts(ScriptedPlayer):
    """Says how many turns it has taken, and what it reads."""

    turns = 0

    def turn(self, observation):
        self.turns += 1
        return f"{self.turns} {observation}"


def play(rule):
    async def turns():
        player = Forced(Counts(), rule)
        return [(await player.respond(heard(word))).text for word in ("a", "b", "c")]

    return asyncio.run(turns())


def test_it_says_what_the_rule_says_and_remembers_that_it_did():
    async def second_turn(observation, attempts):
        return said("forced") if observation[-1].text == "b" and not attempts else None

    assert play(second_turn) == ["1 a", "forced", "3 c"]


@pytest.mark.parametrize("again", [False, True], ids=["before it speaks", "after it has spoken"])
def test_a_rule_of_how_to_speak_is_refused_with_the_players_name(again):
    async def how(observation, attempts):
        return Constraint(begins=("[",)) if len(attempts) == again else None

    with pytest.raises(UserError, match="Counts can be told what to say, but only a model of ours how"):
        play(how)
