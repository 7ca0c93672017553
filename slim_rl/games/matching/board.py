"""Makes and scores the boards of the paper-reviewer matching game.

The rules are those of DialOp's `optimization` game (Lin, Tomlin, Andreas and Eisner 2023,
arXiv 2305.20076; github jlin816/dialop, `dialop/games/optimization.py`). Rows are reviewers, columns
papers, and an assignment is an array that holds the column of each row. Players are 0 and 1.

Many boards at once are held with the board as the *last* axis, so that numpy works on whole batches:
tables (N, N, B) int16 and masks (2, N, N, B) bool.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from itertools import combinations
from multiprocessing import get_context
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from slim_rl.config import MatchingConfig
from slim_rl.errors import UserError

TOP = 99
"""The largest value; the smallest is 0."""
UNKNOWN = 50
"""What an unknown cell counts for, and what a cell is worth that neither player sees."""
MAX_REFUSALS = 10_000
"""DialOp's MAX_TABLES: the board after more refusals than this is taken as it is."""

_BATCH = 1024  # candidates drawn at once: enough to hide numpy's overhead, few enough for the cache
_BLOCK = 64  # boards that share a random stream, and that one process makes in one go
_SAMPLES = 4096  # drawn at once by `posterior_mean`, of which far fewer get past the first look
_MAX_BATCHES = 512  # after which it makes do with what it has


@dataclass(frozen=True, eq=False)
class Board:
    """One board: what is true, who sees what, and on which private scale."""

    table: np.ndarray
    """(N, N) int64, true values 0..99; 50 where neither player sees."""
    masks: np.ndarray
    """(2, N, N) bool, which cells each player sees."""
    scales: np.ndarray
    """(2,) float64, what each player's numbers are multiplied by."""

    @property
    def size(self) -> int:
        """N."""
        return len(self.table)

    @cached_property
    def best_assignment_reward(self) -> int:
        """The true value of the assignment that is best when both players pool what they see."""
        return assignment_value(self.table, assignment_by_view(self, self.masks.any(0)))

    def numbers(self, player: int) -> np.ndarray:
        """(N, N) int64: what `player` reads, its scaled values cut to integers; -1 where it sees none."""
        return np.where(self.masks[player], (self.table * self.scales[player]).astype(np.int64), -1)

    def to_game_state(self) -> dict[str, Any]:
        """DialOp's record of a board, of plain Python numbers; masks are 0 and 1."""
        mask1, mask2 = self.masks.astype(int).tolist()
        scale1, scale2 = self.scales.tolist()
        return {
            "table": self.table.tolist(),
            "mask1": mask1,
            "mask2": mask2,
            "scale1": scale1,
            "scale2": scale2,
            "best_assignment_reward": self.best_assignment_reward,
        }

    @classmethod
    def from_game_state(cls, state: dict[str, Any]) -> "Board":
        """The board of DialOp's record `state`; further keys (`action_log`, …) are left alone.

        Raises ValueError, in one sentence, for a state that is not a board.
        """
        keys = ("table", "mask1", "mask2", "scale1", "scale2", "best_assignment_reward")
        if missing := [key for key in keys if key not in state]:
            raise ValueError(f"the game state has no {', '.join(missing)}")
        table = _matrix(state, "table", TOP)
        if not 2 <= len(table) <= 8:
            raise ValueError(f"the table is {len(table)} x {len(table)}; there are games of size 2 to 8")
        masks = np.stack([_matrix(state, key, 1, len(table)) for key in ("mask1", "mask2")]).astype(bool)
        board = cls(table, masks, np.array([_scale(state, key) for key in ("scale1", "scale2")]))
        recorded, best = state["best_assignment_reward"], board.best_assignment_reward
        if recorded != best:
            raise ValueError(f"the game state records best_assignment_reward {recorded}, but it is {best}")
        if not best:
            raise ValueError("no assignment of the table is worth anything")
        return board


def _matrix(state: dict[str, Any], key: str, top: int, size: int | None = None) -> np.ndarray:
    """(N, N) int64 out of `state[key]`: square, of `size` if given, of whole numbers 0..`top`."""
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


def _scale(state: dict[str, Any], key: str) -> float:
    scale = state[key]
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < float("inf"):
        raise ValueError(f"{key} must be a number greater than 0, not {scale!r}")
    return float(scale)


def optimal_assignment(values: np.ndarray) -> np.ndarray:
    """(N,) int64: the column of each row in the assignment that maximises the sum of `values` (N, N)."""
    return linear_sum_assignment(values, maximize=True)[1]


def assignment_value(table: np.ndarray, assignment: np.ndarray) -> int:
    """What `assignment` (N,) earns on `table` (N, N)."""
    return int(table[np.arange(len(table)), assignment].sum())


def assignment_by_view(board: Board, known: np.ndarray) -> np.ndarray:
    """(N,) int64: the best assignment for who knows the cells `known` (N, N) bool and counts 50 for others.

    Ties fall as in DialOp's `find_max_value_known_assignment`: scipy is given the same numbers.
    """
    return _choice(board.table, known)


def _choice(table: np.ndarray, known: np.ndarray) -> np.ndarray:
    return optimal_assignment(_view(table, known))


def _view(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """`values` where `known`, 50 elsewhere: np.where, at a twentieth of its time on int16 batches."""
    return (values - UNKNOWN) * known + UNKNOWN


def generate_boards(count: int, seed: int, config: MatchingConfig, processes: int = 1) -> Iterator[Board]:
    """The first `count` boards of the endless series that `seed` and `config` name, one by one.

    The series is the same however many processes share the work: it is made in blocks of boards,
    each with a random stream of its own.

    Raises UserError when the selection `stakes` refuses more than 10,000 boards in a row.
    """
    jobs = ((min(_BLOCK, count - i), seed, i // _BLOCK, config) for i in range(0, count, _BLOCK))
    if processes == 1:
        for job in jobs:
            yield from _block(*job)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for boards in pool.map(_whole_block, jobs):
            yield from boards


def _whole_block(job: tuple[int, int, int, MatchingConfig]) -> list[Board]:
    return list(_block(*job))


def _block(count: int, seed: int, block: int, config: MatchingConfig) -> Iterator[Board]:
    """The first `count` boards of one block."""
    rng = np.random.default_rng([seed, block])
    refused = 0
    while True:
        tables, masks = draw(_BATCH, rng, config)
        taken, refused = _taken(passes(tables, masks, config), refused, config)
        for i in taken:
            scales = rng.uniform(*config.scale_range, 2)
            yield Board(tables[..., i].astype(np.int64), masks[..., i].copy(), scales)
            count -= 1
            if not count:
                return


def _taken(passed: np.ndarray, refused: int, config: MatchingConfig) -> tuple[list[int], int]:
    """Which of a batch of candidates are taken, and how many were refused since the last of them.

    `passed` (B,) bool, and `refused` the refusals carried over from the batch before. DialOp counts
    refusals from 0 and takes a board as it is once the count is *over* 10,000.
    """
    taken: list[int] = []
    last = -1 - refused
    for i in [*np.flatnonzero(passed).tolist(), len(passed)]:
        while last + MAX_REFUSALS + 2 < i:
            if config.selection == "stakes":
                raise UserError(
                    f"More than {MAX_REFUSALS} boards in a row of size {config.size} do not reach board.stake "
                    f"{config.stake}, with p_agent {config.p_agent} and p_partner {config.p_partner}; lower board.stake."
                )
            last += MAX_REFUSALS + 2
            taken.append(last)
        if i < len(passed):
            taken.append(i)
            last = i
    return taken, len(passed) - 1 - last


def draw(count: int, rng: np.random.Generator, config: MatchingConfig) -> tuple[np.ndarray, np.ndarray]:
    """`count` candidates before any selection: tables (N, N, B) int16 and masks (2, N, N, B) bool."""
    masks = np.stack([_draw_mask(count, rng, config, player) for player in (0, 1)])
    return _view(_draw_values(count, rng, config), masks[0] | masks[1]), masks


def _draw_values(count: int, rng: np.random.Generator, config: MatchingConfig) -> np.ndarray:
    return rng.integers(0, TOP + 1, (config.size, config.size, count), np.int16)


def _draw_mask(count: int, rng: np.random.Generator, config: MatchingConfig, player: int) -> np.ndarray:
    # 24 random bits a cell: less than float64 costs, and the probability is met to within 1e-7.
    chance = rng.random((config.size, config.size, count), np.float32)
    return chance < (config.p_agent, config.p_partner)[player]


def passes(
    tables: np.ndarray, masks: np.ndarray, config: MatchingConfig, reward: np.ndarray | None = None
) -> np.ndarray:
    """(B,) bool: which candidates the selection keeps, exactly.

    `dialop`: the pooled optimum is more than `stake` times what either player would earn alone.
    `stakes`: it is more than `stake` times the mean over all N! assignments; nothing is asked about
    what a player would choose alone, so that the selection tells a player nothing about that.

    `reward` (B,) is what the first player would earn alone, for a caller who knows it already.
    """
    kept = np.zeros(tables.shape[-1], bool)
    if config.selection == "stakes":
        kept[_beat_the_mean(tables, config.stake)] = True
    else:
        kept[_beat_each_player(tables, masks, config.stake, reward)] = True
    return kept


def _beat_the_mean(tables: np.ndarray, stake: float) -> np.ndarray:
    """Indices of the candidates that `stakes` keeps."""
    # Every cell is in 1 of N assignments, hence the mean over assignments.
    yardstick = stake * (tables.sum((0, 1)) / len(tables))
    alive = np.flatnonzero(_ceiling(tables) > yardstick)
    return alive[_best_sums(tables[..., alive]) > yardstick[alive]]


def _beat_each_player(
    tables: np.ndarray, masks: np.ndarray, stake: float, reward: np.ndarray | None
) -> np.ndarray:
    """Indices of the candidates that `dialop` keeps.

    Screens by bounds that hold however ties are broken, cheapest first; the few survivors are
    looked at one by one with scipy, whose way with ties is DialOp's.
    """
    low = _least_reward(tables, masks[0]) if reward is None else reward
    alive = np.flatnonzero(low * stake < _ceiling(tables))
    tables, masks, low = tables[..., alive], masks[..., alive], low[alive]
    best = _best_sums(tables)
    near = np.flatnonzero(low * stake < best)
    near = near[_least_reward(tables[..., near], masks[1][..., near]) * stake < best[near]]
    unsure = masks if reward is None else masks[1:]
    return alive[[i for i in near if _beats(best[i], tables[..., i], unsure[..., i], stake)]]


def _beats(best: int, table: np.ndarray, masks: np.ndarray, stake: float) -> bool:
    return all(assignment_value(table, _choice(table, mask)) * stake < best for mask in masks)


def _ceiling(tables: np.ndarray) -> np.ndarray:
    """(B,): an upper bound of the best assignment's value, from the best of each row or column."""
    return np.minimum(tables.max(0).sum(0), tables.max(1).sum(0))


def _least_reward(tables: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(B,) int16: a lower bound of what the choice by the view `mask` (N, N, B) earns, for any tie.

    One maximum finds both the value in the view and, among its ties, the least that the cells not
    seen add to it. These are rounded down to tens, so that both fit into 16 bits:
    8 x (50 x 80 + 5) < 2**15, and 8 of them, -40..32 tens, do not reach the next multiple of 80.
    """
    view = (tables - UNKNOWN) * mask
    hidden = (tables - UNKNOWN - view) // 10
    best = _best_sums(view * 80 - hidden)
    value = -((40 - best) // 80)
    return UNKNOWN * len(tables) + value + 10 * (80 * value - best)


def _best_sums(scores: np.ndarray) -> np.ndarray:
    """(B,): the value of the best assignment on each of `scores` (N, N, B), in its dtype.

    Dynamic programming over sets of columns: the best that the first k rows can make of k columns.
    """
    best = scores[0]
    for row, moves in zip(scores[1:], _moves(len(scores)), strict=True):
        options = (_extend(best, row, *move) for move in moves)
        best = reduce(lambda most, option: np.maximum(most, option, out=most), options)
    return best[0]


def _extend(best: np.ndarray, row: np.ndarray, rest: np.ndarray, column: np.ndarray) -> np.ndarray:
    # best[rest] + row[column], in place and without numpy's check of the indices: twice as fast.
    total = best.take(rest, 0, mode="clip")
    total += row.take(column, 0, mode="clip")
    return total


@cache
def _moves(size: int) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """For k = 2..size and i < k: every set of k columns gives its i-th column to row k-1.

    Two arrays (sets of k,): which set of k-1 columns remains, and the column given.
    """
    moves = []
    for k in range(2, size + 1):
        smaller = {columns: i for i, columns in enumerate(combinations(range(size), k - 1))}
        sets = list(combinations(range(size), k))
        rest = np.array([[smaller[columns[:i] + columns[i + 1 :]] for columns in sets] for i in range(k)])
        moves.append(list(zip(rest, np.array(sets).T, strict=True)))
    return moves


def posterior_mean(
    board: Board, player: int, config: MatchingConfig, rng: np.random.Generator, accepted: int = 1000
) -> np.ndarray:
    """(N, N) float64: what `player` should expect of each cell before anybody has said anything.

    The mean of the true table given the cells that `player` sees (with its scale known) and given
    that the board passed the selection, over at least `accepted` samples of such boards. Gives up
    after 2 million samples: then it is the mean over those that passed, or, if none did, 50 for what
    the player does not see (where an unseen cell stands without selection, to within half a point).
    """
    known, truth = board.masks[player][..., None], board.table[..., None].astype(np.int16)
    own = _choice(board.table, board.masks[player])
    total, found = np.zeros_like(board.table), 0
    for _ in range(_MAX_BATCHES):
        seen = _draw_mask(_SAMPLES, rng, config, 1 - player)
        tables = _view(_draw_values(_SAMPLES, rng, config), seen & ~known)
        tables += (truth - UNKNOWN) * known
        masks = np.stack([np.broadcast_to(known, seen.shape), seen])
        reward = tables[np.arange(board.size), own].sum(0)
        kept = np.flatnonzero(passes(tables, masks, config, reward))
        total += tables[..., kept].sum(-1)
        found += len(kept)
        if found >= accepted:
            break
    return total / found if found else np.where(board.masks[player], board.table, float(UNKNOWN))
