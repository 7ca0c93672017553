"""Kuhn poker solved exactly: payoffs, equilibria, and exploitability.

After Kuhn, A simplified two-person poker, 1950. Both seats ante a chip and get one of J, Q, K. An information set is
what a seat knows when it decides: its card and the moves so far.
"""

import itertools
from collections.abc import Mapping, Sequence

CARDS = "JQK"
DEALS = list(itertools.permutations(CARDS, 2))
"""The first seat's card and the second's."""

CHECK, BET, FOLD, CALL = "[check]", "[bet]", "[fold]", "[call]"

History = tuple[str, ...]
InformationSet = tuple[History, str]
"""The moves so far (their number tells whose turn it is), and the card of that seat."""
Strategy = Mapping[InformationSet, Sequence[float]]
"""The probability of each of `options()`, of both seats."""

INFORMATION_SETS: list[InformationSet] = [
    (history, card) for history in ((), (CHECK, BET), (CHECK,), (BET,)) for card in CARDS
]
"""The first seat's six, then the second's."""


def options(history: History) -> tuple[str, str]:
    return (FOLD, CALL) if history[-1:] == (BET,) else (CHECK, BET)


def payoff(deal: tuple[str, str], history: History) -> int | None:
    """The chips that the first seat wins; None while the hand goes on."""
    if history[-1:] == (FOLD,):
        return 1 if len(history) == 2 else -1
    if history[-1:] == (CALL,) or history == (CHECK, CHECK):
        stake = 2 if CALL in history else 1
        return stake if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -stake
    return None


def equilibrium(alpha: float) -> list[tuple[float, float]]:
    """A strategy of both seats that cannot be exploited, for each of INFORMATION_SETS.

    Args:
        alpha: probability that the first seat bluffs with a jack, from 0 to 1/3; each value is an equilibrium.
    """
    bets = [alpha, 0, 3 * alpha, 0, alpha + 1 / 3, 1, 1 / 3, 0, 1, 0, 1 / 3, 1]
    return [(1 - bet, bet) for bet in bets]


def value(strategy: Strategy) -> float:
    """Chips per hand that the first seat wins on average."""
    return sum(_value(deal, (), strategy) for deal in DEALS) / len(DEALS)


def _value(deal: tuple[str, str], history: History, strategy: Strategy) -> float:
    won = payoff(deal, history)
    if won is not None:
        return won
    odds = strategy[history, deal[len(history) % 2]]
    moves = zip(options(history), odds, strict=True)
    return sum(odd * _value(deal, (*history, move), strategy) for move, odd in moves if odd)


def best_response(strategy: Strategy, seat: int) -> float:
    """The most chips per hand that `seat`, 0 or 1, can win if the other one plays `strategy`."""
    own = [place for place in INFORMATION_SETS if len(place[0]) % 2 == seat]
    pure = itertools.product(((1, 0), (0, 1)), repeat=len(own))
    return max((-1) ** seat * value({**strategy, **dict(zip(own, moves, strict=True))}) for moves in pure)


def exploitability(strategy: Strategy) -> float:
    """Chips per hand that a best response wins against it, the mean over both seats; 0 in equilibrium."""
    return (best_response(strategy, 0) + best_response(strategy, 1)) / 2
