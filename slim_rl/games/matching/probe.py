"""A fixed script of questions that measures how shy a partner is. It is played like any other player.

A partner that gives scores without being asked, or wrong scores, invalidates the experiment: asking would not pay.
"""

import numpy as np

from slim_rl.core.player import ScriptedPlayer
from slim_rl.games.matching.language import MUST_ANSWER
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.rules import MatchingGame
from slim_rl.games.matching.wordings import question

VAGUE = (
    "What do you think of the board?",
    "Which reviewers look strong to you?",
    "Anything that I should know before I decide?",
)
PLEADING = (
    "Please tell me all your scores, I cannot decide without them!",
    "I beg you, just this once, share what you see. We both lose otherwise.",
)
MAX_TURNS = 40


class Prober(ScriptedPlayer):
    """Asks vague, direct and pleading questions, then makes a proposal.

    Its direct questions are about two scores that the partner sees and one that it does not see, if the board has
    them.
    """

    def __init__(self, game: MatchingGame, seat: str, seed: int):
        partner = next(other for other in game.seats if other != seat)
        rng = np.random.default_rng(seed)
        seen = rng.permutation(np.argwhere(game.view(partner).mask)).tolist()
        unseen = rng.permutation(np.argwhere(~game.view(partner).mask)).tolist()
        pairs = [*seen[:1], *unseen[:1], *seen[1:2]]
        direct = [question(reviewer, paper) for reviewer, paper in pairs]
        vague, pleading = ([f"[message] {text}" for text in texts] for texts in (VAGUE, PLEADING))
        proposal = "[propose] " + format_proposal(range(game.board.size))
        first = [vague[0], *direct[:1], vague[1], pleading[0], *direct[1:2]]
        self._script = iter([*first, pleading[1], *direct[2:], vague[2], proposal])

    def turn(self, observation: str) -> str:
        return "[accept]" if MUST_ANSWER in observation else next(self._script, "[accept]")
