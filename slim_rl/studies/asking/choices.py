"""Which cells a player asked for: its dialogue played again, with the value of every open cell.

The value of a cell is that of information (Howard 1966): by how much knowing its score is expected to improve the best
assignment, see `slim_rl.games.matching.optimal`. A cell is open if the player neither sees it nor asked for it before.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from slim_rl.games.matching.board import TOP
from slim_rl.games.matching.optimal import values_of_asking
from slim_rl.games.matching.reader import Pair, asked_cells
from slim_rl.games.matching.rules import InvalidTurn, MatchingGame, parse_turn

COLUMNS = ("rank", "ranked", "rank_unknown", "ranked_unknown", "chosen_unknown")


def choices(game: MatchingGame, seat: str, turns: Iterable[tuple[str, str]], p_known: float) -> dict[str, float]:
    """What a player chose in a game, until it first proposed.

    Args:
        game: not begun; it is played.
        turns: (seat, text) of all seats in order.
        p_known: probability that the other player knows a cell.

    Returns:
        COLUMNS. `rank`: sum over the cells it asked for of the percentile rank, by value, among the cells that were open
        then (0 is the least valuable, 1 the most, ties in the middle); a message's cells count one after another.
        `ranked`: how many cells that sums over. `rank_unknown`, `ranked_unknown`: the same for unknown
        cells (it knows them neither exactly nor roughly), among unknown cells. `chosen_unknown`: the unknown open cells it asked for.
    """
    sums, stopped = dict.fromkeys(COLUMNS, 0.0), False
    asked: list[Pair] = []
    for speaker, text in turns:
        if speaker == seat and not stopped:
            stopped = act_of(text) == "propose"
            if cells := asked_cells(message_of(text), game.board.size):
                bounds, open_cells = game.bounds(seat), ~game.view(seat).mask
                for cell in asked:
                    open_cells[cell] = False
                worth = np.where(open_cells, values_of_asking(bounds, p_known).round(9), np.nan)
                _count(sums, worth, bounds[1] - bounds[0] == TOP, cells)
                asked += cells
        if game.turn is None:
            break
        game.move(text)
    return sums


def act_of(text: str) -> str:
    """What a turn does; empty if the rules forbid it."""
    try:
        return parse_turn(text).act
    except InvalidTurn:
        return ""


def message_of(text: str) -> str:
    """What a turn says; empty if it is no message."""
    return parse_turn(text).content if act_of(text) == "message" else ""


def _count(sums: dict[str, float], worth: np.ndarray, unknown: np.ndarray, cells: Sequence[Pair]) -> None:
    """Add the choice of `cells`, one after another, to `sums`; `worth` (N, N) is NaN in cells that are not open."""
    for cell in cells:
        value, worth[cell] = worth[cell], np.nan
        if np.isnan(value):  # it was not open
            continue
        _rank(sums, "", value, worth)
        if unknown[cell]:
            sums["chosen_unknown"] += 1
            _rank(sums, "_unknown", value, worth[unknown])


def _rank(sums: dict[str, float], of: str, value: float, worth: np.ndarray) -> None:
    others = worth[~np.isnan(worth)]
    if len(others):
        sums["rank" + of] += float(((others < value) + (others == value) / 2).mean())
        sums["ranked" + of] += 1
