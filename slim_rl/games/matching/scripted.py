"""Scripted players of the matching game: the shy partner, and references to compare a policy with.

Like every player they read observations and answer with turns; they know their own `View`. References also know both
private scales, so they can compare numbers; this can only make them better.
"""

import re

import numpy as np

from slim_rl.core.game import Demonstration
from slim_rl.core.player import ScriptedPlayer
from slim_rl.games.matching.board import Board, optimal_assignment, posterior_mean
from slim_rl.games.matching.language import MUST_ANSWER, VAGUE_ANSWER, answer, question
from slim_rl.games.matching.names import format_proposal, parse_proposal
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.questions import asked_pairs, asks_something
from slim_rl.games.matching.rules import SEATS, MatchingGame, View

PRIOR_MEAN = 50.0
"""What a player counts for a cell it does not see."""


class ShyPartner(ScriptedPlayer):
    """Never volunteers anything; gives a score only when asked about that pair.

    It says when it does not know a score, and answers more general questions vaguely. It accepts a proposal that is
    worth at least as much as the average assignment by its own numbers (50 for unseen cells), or any proposal with
    `always_accept`.
    """

    def __init__(self, view: View, always_accept: bool):
        self._view, self._always_accept = view, always_accept

    def turn(self, observation: str) -> str:
        said = observation.partition("Partner: ")[2]  # the first one: the text that follows may contain it, too
        if said.startswith("[propose]"):
            return "[accept]" if self._likes(said) else "[reject]"
        text = said.removeprefix("[message] ")
        if pairs := asked_pairs(text, len(self._view.numbers)):
            return "[message] " + " ".join(answer(r, p, self._view.numbers[r, p]) for r, p in pairs)
        return VAGUE_ANSWER if asks_something(text) else "[message] I see."

    def _likes(self, said: str) -> bool:
        if self._always_accept:
            return True
        proposal = parse_proposal(said.removeprefix("[propose]").replace(MUST_ANSWER, ""), len(self._view.mask))
        values = _values(self._view.numbers, self._view.scale)
        worth = values[np.arange(len(values)), list(proposal)].sum()
        return bool(worth >= values.sum() / len(values))


class ReferencePlayer(ScriptedPlayer):
    """Asks about `questions` cells it does not see, then proposes the best assignment by what it knows.

    Args:
        order: which unseen cell it asks about next: `table` from top to bottom, `random`, or `useful`, the one with
            the highest one-step value of information.
        estimate: its first estimate of the scores, (N, N) float; by default its own view.
        exactly: propose this assignment instead of the best one.
    """

    def __init__(
        self,
        view: View,
        partner_scale: float,
        questions: int,
        order: str,
        rng: np.random.Generator,
        estimate: np.ndarray | None = None,
        exactly: np.ndarray | None = None,
    ):
        self._values = _values(view.numbers, view.scale) if estimate is None else estimate.copy()
        self._open = [(int(r), int(p)) for r, p in np.argwhere(~view.mask)]
        if order == "random":
            rng.shuffle(self._open)
        self._order, self._left, self._exactly = order, questions, exactly
        self._partner_scale = partner_scale
        self._asked: tuple[int, int] | None = None

    def turn(self, observation: str) -> str:
        if MUST_ANSWER in observation:
            return "[accept]"
        self.hear(observation)
        if self._left and self._open:
            self._left -= 1
            self._asked = self._next_cell()
            return question(*self._asked)
        return self.proposal()

    def proposal(self) -> str:
        best = optimal_assignment(self._values) if self._exactly is None else self._exactly
        return "[propose] " + format_proposal(tuple(int(paper) for paper in best))

    def hear(self, reply: str) -> None:
        if self._asked and (number := re.search(r"\d+", reply)):
            self._values[self._asked] = np.ceil(int(number[0]) / self._partner_scale)
        self._asked = None

    def _next_cell(self) -> tuple[int, int]:
        if self._order != "useful":
            return self._open.pop(0)
        return self._open.pop(int(np.argmax([_value_of_asking(self._values, cell) for cell in self._open])))


def _value_of_asking(values: np.ndarray, cell: tuple[int, int]) -> float:
    """Expected improvement of the best assignment once `cell` is known (uniform in 0..99)."""
    rows = np.arange(len(values))
    without, forced = values.copy(), values.copy()
    without[cell], forced[cell] = -1e6, 1e6
    best_without = without[rows, optimal_assignment(without)].sum()
    rest_with = forced[rows, optimal_assignment(forced)].sum() - 1e6
    outcomes = np.maximum(best_without, rest_with + np.arange(100))
    return float(outcomes.mean() - max(best_without, rest_with + values[cell]))


def _values(numbers: np.ndarray, scale: float) -> np.ndarray:
    """The scores behind the numbers that a player reads, float; the prior mean where it sees nothing."""
    return np.where(numbers >= 0, np.ceil(numbers / scale), PRIOR_MEAN)


def shy_partner(game: MatchingGame, seat: str, always_accept: bool) -> ShyPartner:
    return ShyPartner(game.view(seat), always_accept)


def reference_player(
    name: str, game: MatchingGame, parameters: Parameters, seed: int, seat: str = SEATS[0]
) -> ReferencePlayer:
    """A reference by name: `random`, `own-view`, `bayes` (no questions; it infers from how boards are selected), or
    `asks-K-random`, `asks-K-useful`, `asks-K-table` with a number K of questions.

    Raises:
        ValueError: there is no reference of this name.
    """
    rng = np.random.default_rng(seed)
    player = SEATS.index(seat)
    view, scale = game.view(seat), game.view(SEATS[1 - player]).scale
    if name == "random":
        return ReferencePlayer(view, scale, 0, "table", rng, exactly=rng.permutation(game.board.size))
    if name == "own-view":
        return ReferencePlayer(view, scale, 0, "table", rng)
    if name == "bayes":
        return ReferencePlayer(view, scale, 0, "table", rng, posterior_mean(game.board, player, parameters, rng))
    if asks := re.fullmatch(r"asks-(\d+)-(random|useful|table)", name):
        return ReferencePlayer(view, scale, int(asks[1]), asks[2], rng)
    raise ValueError(
        f"There is no reference player {name!r}; there are random, own-view, bayes, "
        "and asks-K-random, asks-K-useful, asks-K-table with a number K."
    )


def demonstrate(board: Board, max_questions: int) -> Demonstration:
    """The first seat, played by a reference that asks in table order, with a shy partner."""
    game = MatchingGame(board, max_turns=2 * max_questions + 2)
    agent, partner = game.seats
    view = game.view(agent)
    asker = ReferencePlayer(view, float(board.scales[1]), max_questions, "table", np.random.default_rng(0))
    shy = shy_partner(game, partner, always_accept=True)
    observations, turns, closings = [game.observe(agent)], [], [asker.proposal()]
    for _ in range(min(max_questions, int((~view.mask).sum()))):
        turns.append(asker.turn(observations[-1]))
        game.step(turns[-1])
        game.step(shy.turn(game.observe(partner)))
        observations.append(game.observe(agent))
        asker.hear(observations[-1])
        closings.append(asker.proposal())
    return Demonstration(observations, turns, closings)


def demonstrate_answers(board: Board, questions: int, seed: int) -> Demonstration:
    """The second seat, played by a shy partner; the first one asks `questions` questions in random order."""
    game = MatchingGame(board, max_turns=2 * questions + 2)
    agent, partner = game.seats
    asker = reference_player(f"asks-{questions}-random", game, Parameters(), seed)
    shy = shy_partner(game, partner, always_accept=True)
    observations, turns = [], []
    while game.turn == agent:
        game.step(asker.turn(game.observe(agent)))
        observations.append(game.observe(partner))
        turns.append(shy.turn(observations[-1]))
        game.step(turns[-1])
    return Demonstration(observations, turns[:-1], [*[None] * (len(turns) - 1), turns[-1]])
