"""Players of the first seat without a model: references that ask by a rule, demonstrators, and a prober of partners."""

import itertools
import random
import re
from collections.abc import Callable

import numpy as np

from slim_rl.core.errors import UserError
from slim_rl.core.game import Demonstration
from slim_rl.core.player import ScriptedPlayer
from slim_rl.games.matching.board import TOP, expected, optimal_assignment, posterior_mean
from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS, format_proposal
from slim_rl.games.matching.optimal import best_question, values_of_asking
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.partner import ShyPartner, question
from slim_rl.games.matching.rules import MUST_ANSWER, SEATS, MatchingGame

Choose = Callable[[np.ndarray, np.ndarray, int], tuple[int, int] | None]
"""(the least and the largest score that each cell can have (2, N, N), the unasked cells (N, N) bool, how many may still
be asked for) -> the cell to ask for next; None to stop."""


class ReferencePlayer(ScriptedPlayer):
    """Asks about cells that it does not see, one a turn, then proposes the best assignment by what it knows.

    Args:
        questions: it asks about at most this many cells.
        choose: which cell it asks about next.
        estimate: what it counts for the scores, (N, N) float; by default what it sees, and the answers it gets.
        exactly: propose this assignment instead of the best one.
        rng: of its wordings; without it, it asks in the first one.
    """

    def __init__(
        self,
        game: MatchingGame,
        seat: str,
        questions: int,
        choose: Choose,
        estimate: np.ndarray | None = None,
        exactly: np.ndarray | None = None,
        rng: random.Random | None = None,
    ):
        view, [partner] = game.view(seat), {*game.seats} - {seat}
        self._bounds, self._unasked, self._partner_scale = view.bounds.copy(), ~view.mask, game.view(partner).scale
        self._choose, self._left, self._rng = choose, questions, rng
        self._estimate, self._exactly = estimate, exactly
        self._asked: tuple[int, int] | None = None

    def turn(self, observation: str) -> str:
        if MUST_ANSWER in observation:
            return "[accept]"
        self.hear(observation)
        cell = self._choose(self._bounds, self._unasked, self._left) if self._left and self._unasked.any() else None
        if cell is None:
            return self.proposal()
        self._left -= 1
        self._unasked[cell] = False
        self._asked = cell
        return question(*cell, self._rng, exactly=bool(_partly_known(self._bounds)[cell]))

    @property
    def values(self) -> np.ndarray:
        """(N, N): what it counts for each score: its estimate, or else what it sees and has heard so far."""
        return expected(self._bounds) if self._estimate is None else self._estimate

    @property
    def may_ask(self) -> bool:
        """Whether there is a cell that it neither sees nor has asked about."""
        return bool(self._unasked.any())

    def proposal(self) -> str:
        best = optimal_assignment(self.values) if self._exactly is None else self._exactly
        return "[propose] " + format_proposal(tuple(int(paper) for paper in best))

    def hear(self, reply: str) -> None:
        if self._asked and (number := re.search(r"\d+", reply.partition("\n")[0])):
            self._bounds[:, *self._asked] = np.ceil(int(number[0]) / self._partner_scale)
        self._asked = None


def _in_order(rng: np.random.Generator | None) -> Choose:
    """The unasked cells from top to bottom, or at random."""

    def choose(bounds: np.ndarray, unasked: np.ndarray, left: int) -> tuple[int, int]:
        cells = np.argwhere(unasked)
        row, column = cells[0 if rng is None else rng.integers(len(cells))]
        return int(row), int(column)

    return choose


def _partly_known(bounds: np.ndarray) -> np.ndarray:
    """(N, N) bool: the cells of which a player knows something, roughly or exactly."""
    return bounds[1] - bounds[0] < TOP


def _of_either_kind(rng: random.Random) -> Choose:
    """A coin tells whether the next cell is one known roughly or one of which nothing is known, if both are left.

    Of each kind it is the first after the last one asked for, from top to bottom and around, beginning anywhere.
    """
    last: int | None = None

    def choose(bounds: np.ndarray, unasked: np.ndarray, left: int) -> tuple[int, int]:
        nonlocal last
        before = rng.randrange(unasked.size) if last is None else last
        rough, coin = _partly_known(bounds).ravel(), rng.random() < 0.5
        cells = np.flatnonzero(unasked)
        last = int(min(cells, key=lambda cell: (rough[cell] != coin, (cell - before - 1) % unasked.size)))
        return divmod(last, len(unasked))

    return choose


def _most_useful(p_known: float) -> Choose:
    """The cell with the highest one-step value of information, whatever that is."""

    def choose(bounds: np.ndarray, unasked: np.ndarray, left: int) -> tuple[int, int]:
        worth = np.where(unasked, values_of_asking(bounds, p_known), -np.inf)
        return divmod(int(np.argmax(worth)), len(worth))

    return choose


def _least_known(rng: np.random.Generator) -> Choose:
    """One of the cells of which least is known, at random."""

    def choose(bounds: np.ndarray, unasked: np.ndarray, left: int) -> tuple[int, int]:
        width = np.where(unasked, bounds[1] - bounds[0], -1)
        row, column = rng.choice(np.argwhere(width == width.max()))
        return int(row), int(column)

    return choose


def _worth_its_price(p_known: float, price: float, steps: int) -> Choose:
    """The best question by `steps` of lookahead, 1 or 2, as long as one is worth `price` points."""
    return lambda bounds, unasked, left: best_question(bounds, unasked, min(left, steps), price, p_known)


def reference_player(
    name: str, game: MatchingGame, parameters: Parameters, seed: int, seat: str = SEATS[0]
) -> ReferencePlayer:
    """A reference by name. All of them stop where the partner's patience or their turns end.

    `random` proposes at random; `own-view` what it sees is best for; `bayes` too, and infers from how boards are
    selected. `asks-K-random`, `asks-K-table`, `asks-K-unknown` and `asks-K-useful` ask about K cells, a number or `all`,
    whatever that costs: at random, from top to bottom, those of which it knows least first, the most useful first.
    `greedy` asks for the most useful cell until none is worth its price. `optimal` looks two steps ahead, which is near
    the exact optimum, not on it; on boards larger than 5 by 5 it is `greedy`.

    Raises:
        ValueError: there is no reference of this name.
    """
    rng, limits, known = np.random.default_rng(seed), game.limits, parameters.p_partner
    most = limits.max_turns // 2 - 1
    if limits.patience is not None:
        most = min(most, limits.patience)
    if name == "random":
        return ReferencePlayer(game, seat, 0, _in_order(None), exactly=rng.permutation(game.board.size))
    if name == "own-view":
        return ReferencePlayer(game, seat, 0, _in_order(None))
    if name == "bayes":
        mean = posterior_mean(game.board, SEATS.index(seat), parameters, rng)
        return ReferencePlayer(game, seat, 0, _in_order(None), estimate=mean)
    if name in ("greedy", "optimal"):
        price = limits.price / 100 * game.board.best_assignment_reward
        return ReferencePlayer(game, seat, most, _worth_its_price(known, price, 1 if name == "greedy" else 2))
    if asks := re.fullmatch(r"asks-(\d+|all)-(random|useful|table|unknown)", name):
        questions = most if asks[1] == "all" else min(int(asks[1]), most)
        orders = {
            "random": _in_order(rng),
            "table": _in_order(None),
            "unknown": _least_known(rng),
            "useful": _most_useful(known),
        }
        return ReferencePlayer(game, seat, questions, orders[asks[2]])
    raise ValueError(
        f"There is no reference player {name!r}; there are random, own-view, bayes, greedy, optimal, "
        "and asks-K-random, asks-K-table, asks-K-unknown, asks-K-useful with a number K or all."
    )


def _asker(game: MatchingGame, questions: int, seed: int) -> ReferencePlayer:
    """The first seat; it asks in all wordings, and even when its partner's patience has ended.

    A coin decides between the cells that it knows roughly and those that it knows nothing of, which is worse than to
    draw a cell; it words the two kinds of question differently, so that a model can choose the kind with its first
    words. Of each kind it takes the next cell in the order of the board. As that follows from the last one, a model
    that imitates it has to find the open cells. From demonstrators who drew each cell our models did not learn that:
    three in ten questions of the trained ones were about cells that they saw or had asked for.
    """
    rng = random.Random(seed)
    return ReferencePlayer(game, SEATS[0], questions, _of_either_kind(rng), rng=rng)


def demonstrate(game: MatchingGame, parameters: Parameters, questions: int, seed: int) -> Demonstration:
    """The first seat, played by a reference that asks about `questions` cells, see `_asker`, with a shy partner.

    It neither chooses well nor stops well: when it stops is a habit, see `_habit`; only where nothing is left to ask
    about does it always propose. Its proposals are the best by what it knows.

    Raises:
        UserError: there are too many sums to write, or they are of numbers that the player does not read.
    """
    if parameters.write_sums and (game.board.size > 3 or game.board.private):
        raise UserError("write_sums is for boards of up to 3 reviewers without private scales (scale_range: [1, 1]).")
    agent, partner = game.seats
    asker = _asker(game, questions, seed)
    shy = ShyPartner(game.view(partner), parameters, game.limits, seed + 1)

    def closing() -> str:
        return _worked_proposal(asker.values) if parameters.write_sums else asker.proposal()

    closings: list[str | None] = [closing()]
    observations, turns, stopping = [game.read(agent)], [], [_habit(game)]
    while not (turn := asker.turn(observations[-1])).startswith("[propose]"):
        turns.append(turn)
        game.move(turn)
        game.move(shy.turn(game.read(partner)))
        observations.append(game.read(agent))
        asker.hear(observations[-1])
        closings.append(closing())
        stopping.append(_habit(game))
    if not asker.may_ask:
        stopping[-1] = 1.0
    return Demonstration(observations, turns, closings, stopping=stopping if game.limits.of_asking else ())


def _worked_proposal(values: np.ndarray) -> str:
    """The first of the best assignments, after a thought: the sum of each assignment, and the end of the best one's line
    once more.

    A small model cannot tell the best proposal from the scores at once, but it can learn to copy scores, to add them, and to
    copy the names that stand behind the largest sum. These are the reviewers in the order of the papers.

    Args:
        values: (N, N) of whole numbers.
    """
    lines, ends = [], {}
    for reviewers in itertools.permutations(range(len(values))):
        pairs = [(reviewer, paper) for paper, reviewer in enumerate(reviewers)]
        first_names = [REVIEWERS[reviewer].split()[0] for reviewer in reviewers]
        terms = [
            f"{name} {SHORT_PAPERS[p]} {values[r, p]:.0f}" for name, (r, p) in zip(first_names, pairs, strict=True)
        ]
        total = round(sum(values[pair] for pair in pairs))
        ends[reviewers] = total, f"{total} {' '.join(first_names)}"
        lines.append(f"{' + '.join(terms)} = {ends[reviewers][1]}")
    best = max(ends, key=lambda reviewers: ends[reviewers][0])
    thought = "\n".join([*lines, ends[best][1]])
    return f"[propose] <think>{thought}</think>{format_proposal([best.index(r) for r in range(len(values))])}"


def _habit(game: MatchingGame) -> float:
    """How likely a demonstrator stops here: by the scores that its partner still tells, or by the price; surely in its last
    turn.

    The habit is of little use, but a model that imitates it must read this number where it decides. A demonstrator whose
    choice depends on nothing leaves a model that is blind to it at that place; in our trials GRPO did not change that.
    """
    limits = game.limits
    if (limits.max_turns - game.turns) // 2 <= 1:
        return 1.0
    if limits.patience is not None:
        scores_left = max(0, limits.patience - game.question_count(game.seats[0]))
        return 0.15 if scores_left % 2 else 0.65
    # Several cells at any price: a player that hardly asks earns the same at all prices and learns nothing from them.
    return 0.15 if limits.price % 2 else 0.35


def demonstrate_answers(game: MatchingGame, parameters: Parameters, questions: int, seed: int) -> Demonstration:
    """The second seat, played by a shy partner; the first one asks about `questions` cells."""
    agent, partner = game.seats
    asker = _asker(game, questions, seed)
    shy = ShyPartner(game.view(partner), parameters.model_copy(update={"always_accept": True}), game.limits, seed + 1)
    observations, turns = [], []
    while game.turn == agent:
        game.move(asker.turn(game.read(agent)))
        observations.append(game.read(partner))
        turns.append(shy.turn(observations[-1]))
        game.move(turns[-1])
    return Demonstration(observations, turns[:-1], [*[None] * (len(turns) - 1), turns[-1]])


VAGUE_QUESTIONS = (
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
        vague, pleading = ([f"[message] {text}" for text in texts] for texts in (VAGUE_QUESTIONS, PLEADING))
        proposal = "[propose] " + format_proposal(range(game.board.size))
        first = [vague[0], *direct[:1], vague[1], pleading[0], *direct[1:2]]
        self._script = iter([*first, pleading[1], *direct[2:], vague[2], proposal])

    def turn(self, observation: str) -> str:
        return "[accept]" if MUST_ANSWER in observation else next(self._script, "[accept]")
