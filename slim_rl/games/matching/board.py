"""Makes and scores the boards of the paper-reviewer matching game.

The rules are those of DialOp's `optimization` game (Lin, Tomlin, Andreas and Eisner 2023,
arXiv 2305.20076; github jlin816/dialop, `dialop/games/optimization.py`). Rows are reviewers, columns
papers, and an assignment is an array that holds the column of each row. Players are 0 and 1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
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
MAX_REJECTIONS = 10_000
"""DialOp's MAX_TABLES."""
BATCH = 1024
"""Candidates drawn at once."""

_BLOCK = 64  # boards that share a random stream
_SAMPLES = 4096  # candidates that `posterior_mean` draws at once


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
    def best_assignment(self) -> np.ndarray:
        """(N,) int64: the assignment that is best by what both players see together."""
        return assignment_by_view(self, self.masks[0] | self.masks[1])

    @cached_property
    def best_assignment_reward(self) -> int:
        """The true value of `best_assignment`."""
        return assignment_value(self.table, self.best_assignment)

    def numbers(self, player: int) -> np.ndarray:
        """(N, N) int64: what `player` reads, scores times its scale, rounded down; -1 where it sees nothing."""
        return np.where(self.masks[player], (self.table * self.scales[player]).astype(np.int64), -1)

    def bounds(self, player: int) -> np.ndarray:
        """(2, N, N) int64: the least and the largest score that a cell can have by what `player` knows from the start."""
        least, largest = np.zeros_like(self.table), np.full_like(self.table, TOP)
        if player == 0 and self.rough is not None:
            band = self.table // ROUGH * ROUGH
            least, largest = np.where(self.rough, band, least), np.where(self.rough, band + ROUGH - 1, largest)
        return np.stack([np.where(self.masks[player], self.table, limit) for limit in (least, largest)])

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
        for key in ("scale1", "scale2"):
            scale = state[key]
            if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale <= MAX_SCALE:
                raise ValueError(f"{key} must be a number greater than 0 and at most {MAX_SCALE:g}, not {scale!r}")
        scales = np.array([state["scale1"], state["scale2"]], float)
        rough = _matrix(state, "rough1", 1, len(table)).astype(bool) if "rough1" in state else None
        board = cls(table, masks, scales, rough)
        recorded, best = state["best_assignment_reward"], board.best_assignment_reward
        if recorded != best:
            raise ValueError(f"the game state records best_assignment_reward {recorded!r}, but it is {best}")
        if not best:
            raise ValueError("no assignment of the table is worth anything")
        return board


def _matrix(state: Mapping[str, Any], key: str, top: int, size: int | None = None) -> np.ndarray:
    """(N, N) int64 from `state[key]`: square, of `size` if that is not None, whole numbers 0..`top`."""
    try:
        matrix = np.array(state[key])
    except ValueError:  # rows of different lengths
        raise ValueError(f"{key} must be a square matrix, but its rows differ in length") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"{key} must be a square matrix, not of shape {matrix.shape}")
    if size not in (None, len(matrix)):
        raise ValueError(f"{key} must be {size} x {size} like the table, not {len(matrix)} x {len(matrix)}")
    unclear = top > 1 and any(isinstance(number, bool) for row in state[key] for number in row)
    if unclear or matrix.dtype.kind not in "biuf" or not np.isin(matrix, np.arange(top + 1)).all():
        raise ValueError(f"{key} must hold whole numbers from 0 to {top}")
    return matrix.astype(np.int64)


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
    """`values` where `known`, 50 elsewhere; several times as fast as np.where."""
    return (values - UNKNOWN) * known + UNKNOWN


def generate_boards(count: int, seed: int, parameters: Parameters) -> Iterator[Board]:
    """The first `count` boards of the endless series that `seed` and `parameters` determine.

    Raises:
        UserError: the selection `stakes` rejects more than 10,000 boards in a row.
    """
    for i in range(0, count, _BLOCK):
        yield from islice(_block(seed, i // _BLOCK, parameters), min(_BLOCK, count - i))


def _block(seed: int, block: int, parameters: Parameters) -> Iterator[Board]:
    """As in DialOp, whose count of rejections begins at 0, the board after more than 10,000 of them is kept as it is."""
    rng, rejections = np.random.default_rng([seed, block]), 0
    while True:
        tables, masks = draw(BATCH, rng, parameters)
        for i, passed in enumerate(passes(tables, masks, parameters).tolist()):
            if not passed and rejections <= MAX_REJECTIONS:
                rejections += 1
                continue
            if not passed and parameters.selection == "stakes":
                raise UserError(
                    f"More than {MAX_REJECTIONS} boards of size {parameters.size} in a row do not reach stake "
                    f"{parameters.stake}, with p_agent {parameters.p_agent} and p_partner {parameters.p_partner}; "
                    "lower games.matching.stake."
                )
            rejections = 0
            scales, mask, rough = rng.uniform(*parameters.scale_range, 2), masks[:, i].copy(), None
            if parameters.p_rough:  # out of the cells that only its partner sees
                rough = (rng.random(mask[0].shape) < parameters.p_rough) & mask[1] & ~mask[0]
            yield Board(tables[i].astype(np.int64), mask, scales, rough)


def draw(count: int, rng: np.random.Generator, parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """`count` candidates before any selection: tables (B, N, N) and masks (2, B, N, N) bool."""
    masks = np.stack([_draw_mask(count, rng, parameters, player) for player in (0, 1)])
    return _view(_draw_values(count, rng, parameters), masks[0] | masks[1]), masks


def _draw_values(count: int, rng: np.random.Generator, parameters: Parameters) -> np.ndarray:
    return np.moveaxis(rng.integers(0, TOP + 1, (parameters.size, parameters.size, count), np.int16), -1, 0)


def _draw_mask(count: int, rng: np.random.Generator, parameters: Parameters, player: int) -> np.ndarray:
    chance = np.moveaxis(rng.random((parameters.size, parameters.size, count), np.float32), -1, 0)
    return chance < (parameters.p_agent, parameters.p_partner)[player]


def passes(
    tables: np.ndarray, masks: np.ndarray, parameters: Parameters, reward: np.ndarray | None = None
) -> np.ndarray:
    """(B,) bool: which candidates the selection keeps.

    `dialop`: the pooled optimum is more than `stake` times what each player would earn alone.
    `stakes`: it is more than `stake` times the mean over all N! assignments. This does not depend on what a player
    would choose alone, so the selection tells a player nothing about that.

    Args:
        tables: (B, N, N).
        masks: (2, B, N, N) bool.
        reward: (B,) what the first player would earn alone, if the caller knows it.
    """
    # The best of each row or column bounds the optimum, and spares most candidates the exact one.
    most = np.minimum(tables.max(1).sum(1), tables.max(2).sum(1))
    if parameters.selection == "stakes":
        # Each cell is in 1 of N assignments, so the mean over assignments is the sum of all cells over N.
        least = parameters.stake * (tables.sum((1, 2)) / parameters.size)
    else:
        least = parameters.stake * (_earned(tables, masks[0]) if reward is None else reward)
    kept = np.flatnonzero(most > least)
    best = _earned(tables[kept])
    kept, best = kept[best > least[kept]], best[best > least[kept]]
    if parameters.selection == "dialop":
        kept = kept[best > parameters.stake * _earned(tables[kept], masks[1][kept])]
    return np.isin(np.arange(len(tables)), kept)


def _earned(tables: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
    """(B,): the value of the assignments that are best by the cells `known` (B, N, N) bool, all of them by default."""
    views = (tables if known is None else _view(tables, known)).astype(float, order="C")
    papers = np.array([linear_sum_assignment(costs)[1] for costs in -views], int).reshape(tables.shape[:2])
    return np.take_along_axis(tables, papers[..., None], 2).sum((1, 2))


def posterior_mean(
    board: Board,
    player: int,
    parameters: Parameters,
    rng: np.random.Generator,
    accepted: int = 1000,
    batches: int = 512,
) -> np.ndarray:
    """(N, N) float64: the scores that `player` should expect before anything has been said.

    The mean of the true table given the cells that `player` sees (with its scale known) and given that the board
    passed the selection, over at least `accepted` samples of such boards. After `batches` of 4,096 samples it is the mean
    over those that passed; if none passed, 50 for the cells that the player does not see (the mean of an unseen cell
    without selection, to within half a point).
    """
    known = board.masks[player]
    rough = np.zeros_like(known) if player or board.rough is None else board.rough
    own = assignment_by_view(board, known)
    total, count = np.zeros_like(board.table), 0
    for _ in range(batches):
        seen = _draw_mask(_SAMPLES, rng, parameters, 1 - player)
        drawn = _draw_values(_SAMPLES, rng, parameters)
        drawn = np.where(rough, board.table // ROUGH * ROUGH + drawn % ROUGH, drawn)
        tables = np.where(known, board.table, _view(drawn, seen | rough))
        masks = np.stack([np.broadcast_to(known, seen.shape), seen])
        kept = passes(tables, masks, parameters, tables[:, np.arange(board.size), own].sum(1))
        total += tables[kept].sum(0)
        count += int(kept.sum())
        if count >= accepted:
            break
    return total / count if count else expected(board.bounds(player)).astype(float)
