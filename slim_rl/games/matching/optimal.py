"""What an answer is worth before it is known: one-step value of information, and two steps of lookahead.

Howard 1966, Information Value Theory, IEEE Transactions on Systems Science and Cybernetics 2:1. A score that nobody has
told is uniform between its bounds, 0 and 99 if nothing is known of it, and counts as their middle until then; the
other player knows it with a given probability.
"""

from functools import cache
from itertools import permutations

import numpy as np

from slim_rl.games.matching.board import optimal_assignment

_QUANTILES = np.arange(0.05, 1, 0.1)
"""Ten equally likely answers, for the second step."""
_LARGEST = 5  # N! assignments are listed up to this size


def values_of_asking(bounds: np.ndarray, p_known: float = 0.8) -> np.ndarray:
    """(N, N) float: by how many points the best assignment is expected to improve once a cell has been asked for.

    Args:
        bounds: (2, N, N), the least and the largest score that each cell can have.
        p_known: probability that the other player knows a cell.
    """
    return p_known * _gain(bounds[:, None])[0]


def best_question(
    bounds: np.ndarray, unasked: np.ndarray, left: int, price: float, p_known: float = 0.8
) -> tuple[int, int] | None:
    """The cell to ask for next, by two steps of lookahead; None if none is worth its price.

    Args:
        bounds: (2, N, N), as in `values_of_asking`.
        unasked: (N, N) bool.
        left: how many more cells may be asked for.
        price: of a cell, in points.
    """
    if left < 1 or not unasked.any():
        return None
    worth = np.where(unasked, values_of_asking(bounds, p_known) - price, -np.inf)
    if left > 1 and len(unasked) <= _LARGEST:
        worth = _two_steps(bounds, unasked, worth, price, p_known)
    cell = np.unravel_index(int(np.argmax(worth)), worth.shape)
    return (int(cell[0]), int(cell[1])) if worth[cell] > 0 else None


def _two_steps(bounds: np.ndarray, unasked: np.ndarray, one: np.ndarray, price: float, p_known: float) -> np.ndarray:
    """(N, N): what each cell is worth if one more may be asked for after its answer."""
    cells = np.argwhere(unasked)
    # The last one: the other player does not know it.
    chances = np.append(np.full(len(_QUANTILES), p_known / len(_QUANTILES)), 1 - p_known)
    after = np.repeat(bounds[:, None], len(cells) * len(chances), 1).astype(float)
    still = np.repeat(unasked[None], after.shape[1], 0)
    rows, columns = np.repeat(cells, len(chances), 0).T
    order = np.arange(len(still))
    low, high = bounds[:, rows, columns]
    # The answers lie where those of 0..99 lie at 4.5, 14.5, and so on.
    answers = low + np.tile(np.append(_QUANTILES, 0), len(cells)) * (high - low + 1) - 0.5
    unknown = np.tile(np.arange(len(chances)) == len(_QUANTILES), len(cells))
    after[:, order, rows, columns] = np.where(unknown, after[:, order, rows, columns], answers)
    still[order, rows, columns] = False
    second = np.where(still, p_known * _gain(after) - price, 0).max((1, 2))
    second = (second.clip(0).reshape(len(cells), -1) * chances).sum(1)
    worth = np.full(unasked.shape, -np.inf)
    worth[tuple(cells.T)] = one[tuple(cells.T)] + second
    return worth


def _gain(bounds: np.ndarray) -> np.ndarray:
    """(B, N, N) from (2, B, N, N): mean over a cell's outcomes of the best sum, less the best sum now; at least 0, because
    a middle that is rounded up is half a point too high."""
    (low, high), values = bounds, _middle(bounds)
    rest, without = _with_and_without(values)
    # The mean of max(without, rest + x) over x in low..high: only the outcomes above without - rest count.
    above = np.ceil(np.clip(without - rest, low, high + 1))
    count = high + 1 - above
    total = (above - low) * without + count * rest + (above + high) * count / 2
    return np.maximum(total / (high + 1 - low) - np.maximum(without, rest + values), 0)


def _middle(bounds: np.ndarray) -> np.ndarray:
    """What counts for a score until it is known, as `slim_rl.games.matching.board.expected`; also for the quantiles of
    an answer, which are no whole numbers."""
    low, high = bounds
    return np.where(low == high, low, (low + high + 1) / 2).astype(float)


def _with_and_without(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, N, N) each: the best sum of the other cells with a cell, and the best sum without it."""
    size = values.shape[-1]
    if size > _LARGEST:
        return _one_by_one(values)
    chosen = _assignments(size)  # (N!, N * N)
    sums = values.reshape(len(values), -1) @ chosen.T  # (B, N!)
    having = np.where(chosen.T.astype(bool)[None], sums[:, None], -np.inf).max(-1)
    lacking = np.where(chosen.T.astype(bool)[None], -np.inf, sums[:, None]).max(-1)
    return having.reshape(values.shape) - values, lacking.reshape(values.shape)


def _one_by_one(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    having, lacking = np.empty_like(values), np.empty_like(values)
    for board, row, column in np.ndindex(values.shape):
        for values_with, value in ((having, 1e6), (lacking, -1e6)):
            changed = values[board].copy()
            changed[row, column] = value
            best = optimal_assignment(changed)
            values_with[board, row, column] = changed[np.arange(len(best)), best].sum()
    return having - 1e6, lacking


@cache
def _assignments(size: int) -> np.ndarray:
    """(N!, N * N) float: the cells of each assignment."""
    return np.array([np.eye(size)[list(papers)].ravel() for papers in permutations(range(size))])
