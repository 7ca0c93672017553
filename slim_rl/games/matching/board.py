"""Makes and scores the boards of the paper-reviewer matching game.

The rules are those of DialOp's `optimization` game (Lin, Tomlin, Andreas and Eisner 2023,
arXiv 2305.20076; github jlin816/dialop, `dialop/games/optimization.py`). Rows are reviewers, columns
papers, and an assignment is an array that holds the column of each row. Players are 0 and 1.

Many boards at once are held with the board as the *last* axis, so that numpy works on whole batches:
tables (N, N, B) int16 and masks (2, N, N, B) bool.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from itertools import combinations, islice
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from slim_rl.core.errors import UserError
from slim_rl.games.matching.parameters import MAX_SCALE, Parameters

TOP = 99
"""The largest score; the smallest is 0."""
UNKNOWN = 50
"""A player counts this for a cell it does not see; a cell that neither player sees has this score."""
ROUGH = 10
"""A score that a player knows roughly lies between two multiples of this."""
MAX_REFUSALS = 10_000
"""DialOp's MAX_TABLES: after more rejected boards than this in a row, the next one is kept as it is."""

_BATCH = 1024  # candidates drawn at once: enough to amortise numpy's overhead, few enough for the CPU's cache
_BLOCK = 64  # boards that share a random stream
_SAMPLES = 4096  # candidates that `posterior_mean` draws at once; most fail the first bound
_MAX_BATCHES = 512  # then `posterior_mean` uses the samples it has


@dataclass(frozen=True, eq=False)
class Board:
    """One board: the true scores, which cells each player sees, and the players' private scales."""

    table: np.ndarray
    """(N, N) int64, true scores 0..99; 50 in cells that neither player sees."""
    masks: np.ndarray
    """(2, N, N) bool, the cells that each player sees."""
    scales: np.ndarray
    """(2,) float64, the factors of the numbers that each player reads."""
    rough: np.ndarray | None = None
    """(N, N) bool, the cells that the first player does not see but knows to a band of ten, see `bounds`; None without
    any."""

    @property
    def size(self) -> int:
        """N."""
        return len(self.table)

    @property
    def private(self) -> bool:
        """Whether players read scaled numbers."""
        return bool((self.scales != 1).any())

    @cached_property
    def best_assignment_reward(self) -> int:
        """The true value of the assignment that is best by what both players see together."""
        return assignment_value(self.table, assignment_by_view(self, self.masks[0] | self.masks[1]))

    def numbers(self, player: int) -> np.ndarray:
        """(N, N) int64: what `player` reads, scores times its scale, rounded down; -1 where it sees nothing."""
        return np.where(self.masks[player], (self.table * self.scales[player]).astype(np.int64), -1)

    def bounds(self, player: int) -> np.ndarray:
        """(2, N, N) int64: the least and the largest score that a cell can have by what `player` knows from the start."""
        return np.stack([np.where(self.masks[player], self.table, limit) for limit in self._rough_bounds(player)])

    def _rough_bounds(self, player: int) -> tuple[np.ndarray, np.ndarray]:
        if player or self.rough is None:
            return np.zeros_like(self.table), np.full_like(self.table, TOP)
        least = self.table // ROUGH * ROUGH
        return np.where(self.rough, least, 0), np.where(self.rough, least + ROUGH - 1, TOP)

    def to_game_state(self) -> dict[str, Any]:
        """DialOp's record of a board as JSON values; masks are 0 and 1. `rough1` is ours, of a board that has such cells."""
        mask1, mask2 = self.masks.astype(int).tolist()
        scale1, scale2 = self.scales.tolist()
        rough = {} if self.rough is None else {"rough1": self.rough.astype(int).tolist()}
        return rough | {
            "table": self.table.tolist(),
            "mask1": mask1,
            "mask2": mask2,
            "scale1": scale1,
            "scale2": scale2,
            "best_assignment_reward": self.best_assignment_reward,
        }

    @classmethod
    def from_game_state(cls, state: Mapping[str, Any]) -> "Board":
        """The board of DialOp's record `state`; other keys (`action_log`, ...) are ignored.

        Raises:
            ValueError: it is not a board; the sentence says why.
        """
        keys = ("table", "mask1", "mask2", "scale1", "scale2", "best_assignment_reward")
        if missing := [key for key in keys if key not in state]:
            raise ValueError(f"the game state has no {', '.join(missing)}")
        table = _matrix(state, "table", TOP)
        if not 2 <= len(table) <= 8:
            raise ValueError(f"the table is {len(table)} x {len(table)}; there are games of size 2 to 8")
        masks = np.stack([_matrix(state, key, 1, len(table)) for key in ("mask1", "mask2")]).astype(bool)
        scales = np.array([_scale(state, key) for key in ("scale1", "scale2")])
        rough = _matrix(state, "rough1", 1, len(table)).astype(bool) if "rough1" in state else None
        board = cls(table, masks, scales, rough)
        recorded, best = state["best_assignment_reward"], board.best_assignment_reward
        if recorded != best:
            raise ValueError(f"the game state records best_assignment_reward {recorded!r}, but it is {best}")
        if not best:
            raise ValueError("no assignment of the table is worth anything")
        return board


def _matrix(state: Mapping[str, Any], key: str, top: int, size: int | None = None) -> np.ndarray:
    """(N, N) int64 from `state[key]`: square, of `size` if given, whole numbers 0..`top`."""
    try:
        given = np.array(state[key])
    except ValueError:  # rows of different lengths
        raise ValueError(f"{key} must be a square matrix, but its rows differ in length") from None
    if given.ndim != 2 or given.shape[0] != given.shape[1] or not given.size:
        raise ValueError(f"{key} must be a square matrix, not of shape {given.shape}")
    if size not in (None, len(given)):
        raise ValueError(f"{key} must be {size} x {size} like the table, not {len(given)} x {len(given)}")
    if given.dtype.kind not in "biuf" or not np.isin(given, np.arange(top + 1)).all():
        raise ValueError(f"{key} must hold whole numbers from 0 to {top}")
    return given.astype(np.int64)


def _scale(state: Mapping[str, Any], key: str) -> float:
    scale = state[key]
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale <= MAX_SCALE:
        raise ValueError(f"{key} must be a number greater than 0 and at most {MAX_SCALE:g}, not {scale!r}")
    return float(scale)


def optimal_assignment(values: np.ndarray) -> np.ndarray:
    """(N,) int64: the column of each row in the assignment that maximises the sum of `values` (N, N)."""
    return linear_sum_assignment(values, maximize=True)[1]


def assignment_value(table: np.ndarray, assignment: np.ndarray) -> int:
    """What `assignment` (N,) earns on `table` (N, N)."""
    return int(table[np.arange(len(table)), assignment].sum())


def expected(bounds: np.ndarray) -> np.ndarray:
    """(N, N) int64: what a player counts for each score of which it knows `bounds`, (2, N, N): the middle, so 50 for a
    cell of which it knows nothing."""
    return (bounds[0] + bounds[1] + 1) // 2


def assignment_by_view(board: Board, known: np.ndarray) -> np.ndarray:
    """(N,) int64: the best assignment for a player that knows the cells `known` (N, N) bool and counts 50 for others.

    Ties are broken as in DialOp's `find_max_value_known_assignment`: scipy gets the same numbers.
    """
    return optimal_assignment(_view(board.table, known))


def _view(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """`values` where `known`, 50 elsewhere: np.where, but 20 times as fast on int16 batches."""
    return (values - UNKNOWN) * known + UNKNOWN


def generate_boards(count: int, seed: int, parameters: Parameters) -> Iterator[Board]:
    """The first `count` boards of the endless series that `seed` and `parameters` determine.

    Raises:
        UserError: the selection `stakes` rejects more than 10,000 boards in a row.
    """
    for i in range(0, count, _BLOCK):
        yield from islice(_block(seed, i // _BLOCK, parameters), min(_BLOCK, count - i))


def _block(seed: int, block: int, parameters: Parameters) -> Iterator[Board]:
    rng = np.random.default_rng([seed, block])
    refused = 0
    while True:
        tables, masks = draw(_BATCH, rng, parameters)
        taken, refused = _taken(passes(tables, masks, parameters), refused, parameters)
        for i in taken:
            scales = rng.uniform(*parameters.scale_range, 2)
            yield Board(
                tables[..., i].astype(np.int64), masks[..., i].copy(), scales, _rough(masks[..., i], rng, parameters)
            )


def _rough(masks: np.ndarray, rng: np.random.Generator, parameters: Parameters) -> np.ndarray | None:
    """(N, N) bool: the cells that the first player knows roughly; of these that its partner sees and it does not."""
    if not parameters.p_rough:
        return None
    return (rng.random(masks[0].shape) < parameters.p_rough) & masks[1] & ~masks[0]


def _taken(passed: np.ndarray, refused: int, parameters: Parameters) -> tuple[list[int], int]:
    """Which of a batch of candidates are kept, and how many were rejected since the last of them.

    DialOp counts rejections from 0 and keeps a board as it is once the count is *over* 10,000.

    Args:
        passed: (B,) bool, the candidates that pass the selection.
        refused: rejections since the last board of the batches before.
    """
    taken: list[int] = []
    last = -1 - refused
    for i in [*np.flatnonzero(passed).tolist(), len(passed)]:
        while last + MAX_REFUSALS + 2 < i:
            if parameters.selection == "stakes":
                raise UserError(
                    f"More than {MAX_REFUSALS} boards of size {parameters.size} in a row do not reach stake "
                    f"{parameters.stake}, with p_agent {parameters.p_agent} and p_partner {parameters.p_partner}; "
                    "lower games.matching.stake."
                )
            last += MAX_REFUSALS + 2
            taken.append(last)
        if i < len(passed):
            taken.append(i)
            last = i
    return taken, len(passed) - 1 - last


def draw(count: int, rng: np.random.Generator, parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """`count` candidates before any selection: tables (N, N, B) int16 and masks (2, N, N, B) bool."""
    masks = np.stack([_draw_mask(count, rng, parameters, player) for player in (0, 1)])
    return _view(_draw_values(count, rng, parameters), masks[0] | masks[1]), masks


def _draw_values(count: int, rng: np.random.Generator, parameters: Parameters) -> np.ndarray:
    return rng.integers(0, TOP + 1, (parameters.size, parameters.size, count), np.int16)


def _draw_mask(count: int, rng: np.random.Generator, parameters: Parameters, player: int) -> np.ndarray:
    # float32: faster than float64, and the probability is exact to within 1e-7
    chance = rng.random((parameters.size, parameters.size, count), np.float32)
    return chance < (parameters.p_agent, parameters.p_partner)[player]


def passes(
    tables: np.ndarray, masks: np.ndarray, parameters: Parameters, reward: np.ndarray | None = None
) -> np.ndarray:
    """(B,) bool: which candidates the selection keeps, exactly.

    `dialop`: the pooled optimum is more than `stake` times what each player would earn alone.
    `stakes`: it is more than `stake` times the mean over all N! assignments. This does not depend on what a player
    would choose alone, so the selection tells a player nothing about that.

    Args:
        reward: (B,) what the first player would earn alone, if the caller knows it.
    """
    kept = np.zeros(tables.shape[-1], bool)
    if parameters.selection == "stakes":
        kept[_beat_the_mean(tables, parameters.stake)] = True
    else:
        kept[_beat_each_player(tables, masks, parameters.stake, reward)] = True
    return kept


def _beat_the_mean(tables: np.ndarray, stake: float) -> np.ndarray:
    """Indices of the candidates that `stakes` keeps."""
    # Each cell is in 1 of N assignments, so the mean over assignments is the sum of all cells over N.
    yardstick = stake * (tables.sum((0, 1)) / len(tables))
    alive = np.flatnonzero(_ceiling(tables) > yardstick)
    return alive[_best_sums(tables[..., alive]) > yardstick[alive]]


def _beat_each_player(tables: np.ndarray, masks: np.ndarray, stake: float, reward: np.ndarray | None) -> np.ndarray:
    """Indices of the candidates that `dialop` keeps.

    Filters by bounds that hold for any breaking of ties, cheapest first; scipy, which breaks ties as DialOp does,
    then checks the few that are left one by one.
    """
    low = _least_reward(tables, masks[0]) if reward is None else reward
    alive = np.flatnonzero(low * stake < _ceiling(tables))
    tables, masks, low = tables[..., alive], masks[..., alive], low[alive]
    best = _best_sums(tables)
    near = np.flatnonzero(low * stake < best)
    near = near[_least_reward(tables[..., near], masks[1][..., near]) * stake < best[near]]
    unsure = masks if reward is None else masks[1:]

    def beaten(i: int, mask: np.ndarray) -> bool:
        table = tables[..., i]
        return assignment_value(table, optimal_assignment(_view(table, mask))) * stake < best[i]

    return alive[[i for i in near.tolist() if all(beaten(i, mask) for mask in unsure[..., i])]]


def _ceiling(tables: np.ndarray) -> np.ndarray:
    """(B,): an upper bound of the best assignment's value, from the best of each row or column."""
    return np.minimum(tables.max(0).sum(0), tables.max(1).sum(0))


def _least_reward(tables: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(B,) int16: a lower bound of what the best choice by the view `mask` (N, N, B) earns, for any tie.

    One maximum finds both the value in the view and, among its ties, the least that the unseen cells add to it.
    These are rounded down to tens, so both fit into 16 bits: 8 x (50 x 80 + 5) < 2**15, and 8 of them, -40..32
    tens, stay below the next multiple of 80.
    """
    view = (tables - UNKNOWN) * mask
    hidden = (tables - UNKNOWN - view) // 10
    best = _best_sums(view * 80 - hidden)
    value = -((40 - best) // 80)
    return UNKNOWN * len(tables) + value + 10 * (80 * value - best)


def _best_sums(scores: np.ndarray) -> np.ndarray:
    """(B,): the value of the best assignment on each of `scores` (N, N, B), in its dtype.

    Dynamic programming over sets of columns: the best value of the first k rows on each set of k columns.
    """
    best = scores[0]
    for row, moves in zip(scores[1:], _moves(len(scores)), strict=True):
        options = (_extend(best, row, *move) for move in moves)
        best = reduce(lambda most, option: np.maximum(most, option, out=most), options)
    return best[0]


def _extend(best: np.ndarray, row: np.ndarray, rest: np.ndarray, column: np.ndarray) -> np.ndarray:
    # best[rest] + row[column], in place and without numpy's bounds check: twice as fast
    total = best.take(rest, 0, mode="clip")
    total += row.take(column, 0, mode="clip")
    return total


@cache
def _moves(size: int) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """For k = 2..size and i < k: each set of k columns gives its i-th column to row k-1.

    Two arrays (sets of k,): the set of k-1 columns that remains, and the column that was given.
    """
    moves = []
    for k in range(2, size + 1):
        smaller = {columns: i for i, columns in enumerate(combinations(range(size), k - 1))}
        sets = list(combinations(range(size), k))
        rest = np.array([[smaller[columns[:i] + columns[i + 1 :]] for columns in sets] for i in range(k)])
        moves.append(list(zip(rest, np.array(sets).T, strict=True)))
    return moves


def posterior_mean(
    board: Board, player: int, parameters: Parameters, rng: np.random.Generator, accepted: int = 1000
) -> np.ndarray:
    """(N, N) float64: the scores that `player` should expect before anything has been said.

    The mean of the true table given the cells that `player` sees (with its scale known) and given that the board
    passed the selection, over at least `accepted` samples of such boards. After 2 million samples it is the mean over
    those that passed; if none passed, 50 for the cells that the player does not see (the mean of an unseen cell
    without selection, to within half a point).
    """
    known, truth = board.masks[player][..., None], board.table[..., None].astype(np.int16)
    rough = np.zeros_like(known) if player or board.rough is None else board.rough[..., None]
    own = assignment_by_view(board, board.masks[player])
    total, found = np.zeros_like(board.table), 0
    for _ in range(_MAX_BATCHES):
        seen = _draw_mask(_SAMPLES, rng, parameters, 1 - player)
        drawn = _draw_values(_SAMPLES, rng, parameters)
        drawn = np.where(rough, truth // ROUGH * ROUGH + drawn % ROUGH, drawn)
        tables = _view(drawn, (seen | rough) & ~known)
        tables += (truth - UNKNOWN) * known
        masks = np.stack([np.broadcast_to(known, seen.shape), seen])
        reward = tables[np.arange(board.size), own].sum(0)
        kept = np.flatnonzero(passes(tables, masks, parameters, reward))
        total += tables[..., kept].sum(-1)
        found += len(kept)
        if found >= accepted:
            break
    return total / found if found else expected(board.bounds(player)).astype(float)
