"""What an answer is worth before it is known: one-step value of information, and two steps of lookahead.

Howard 1966, Information Value Theory, IEEE Transactions on Systems Science and Cybernetics 2:1. A score that nobody has
told is uniform in 0..99 and counts 50 until then; the other player knows it with a given probability.
"""

from functools import cache
from itertools import permutations

import numpy as np

from slim_rl.games.matching.board import TOP, optimal_assignment

_OUTCOMES = np.arange(TOP + 1)
_QUANTILES = np.arange(4.5, TOP, 10)
"""Ten equally likely answers, for the second step."""
_LARGEST = 5  # N! assignments are listed up to this size


def values_of_asking(values: np.ndarray, p_known: float = 0.8) -> np.ndarray:
    """(N, N) float: by how many points the best assignment is expected to improve once a cell has been asked for.

    Args:
        values: (N, N) float, what is known of the scores, 50 where nothing is.
        p_known: probability that the other player knows a cell.
    """
    rest, without = _with_and_without(values[None])
    return p_known * _gain(values[None], rest, without)[0]


def best_question(
    values: np.ndarray, unasked: np.ndarray, left: int, price: float, p_known: float = 0.8
) -> tuple[int, int] | None:
    """The cell to ask for next, by two steps of lookahead; None if none is worth its price.

    Args:
        values: (N, N) float, as in `values_of_asking`.
        unasked: (N, N) bool.
        left: how many more cells may be asked for.
        price: of a cell, in points.
    """
    if left < 1 or not unasked.any():
        return None
    worth = np.where(unasked, values_of_asking(values, p_known) - price, -np.inf)
    if left > 1 and len(values) <= _LARGEST:
        worth = _two_steps(values, unasked, worth, price, p_known)
    cell = np.unravel_index(int(np.argmax(worth)), worth.shape)
    return (int(cell[0]), int(cell[1])) if worth[cell] > 0 else None


def _two_steps(values: np.ndarray, unasked: np.ndarray, one: np.ndarray, price: float, p_known: float) -> np.ndarray:
    """(N, N): what each cell is worth if one more may be asked for after its answer."""
    cells = np.argwhere(unasked)
    outcomes = np.append(_QUANTILES, np.nan)  # the last one: it is not known
    chances = np.append(np.full(len(_QUANTILES), p_known / len(_QUANTILES)), 1 - p_known)
    after = np.repeat(values[None], len(cells) * len(outcomes), 0)
    still = np.repeat(unasked[None], len(after), 0)
    rows, columns = np.repeat(cells, len(outcomes), 0).T
    told = np.tile(outcomes, len(cells))
    order = np.arange(len(after))
    after[order, rows, columns] = np.where(np.isnan(told), values[rows, columns], told)
    still[order, rows, columns] = False
    rest, without = _with_and_without(after)
    second = np.where(still, p_known * _gain(after, rest, without) - price, 0).max((1, 2))
    second = (second.clip(0).reshape(len(cells), -1) * chances).sum(1)
    worth = np.full(values.shape, -np.inf)
    worth[tuple(cells.T)] = one[tuple(cells.T)] + second
    return worth


def _gain(values: np.ndarray, rest: np.ndarray, without: np.ndarray) -> np.ndarray:
    """(B, N, N): mean over a cell's outcomes of the best sum, less the best sum now."""
    # The mean of max(without, rest + x) over x in 0..99: only the outcomes above without - rest count.
    threshold = np.clip(without - rest, 0, TOP + 1)
    above = np.ceil(threshold)
    count = TOP + 1 - above
    total = above * without + count * rest + (above + TOP) * count / 2
    return total / len(_OUTCOMES) - np.maximum(without, rest + values)


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
        for found, value in ((having, 1e6), (lacking, -1e6)):
            changed = values[board].copy()
            changed[row, column] = value
            best = optimal_assignment(changed)
            found[board, row, column] = changed[np.arange(len(best)), best].sum()
    return having - 1e6, lacking


@cache
def _assignments(size: int) -> np.ndarray:
    """(N!, N * N) float: the cells of each assignment."""
    return np.array([np.eye(size)[list(papers)].ravel() for papers in permutations(range(size))])
