"""Which cells were asked for, and when a player stopped: judged by the value of each open cell."""

import numpy as np

from slim_rl.games.matching.board import Board
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.optimal import values_of_asking
from slim_rl.games.matching.partner import answer, question
from slim_rl.games.matching.rules import Limits, MatchingGame
from slim_rl.studies.asking.choices import choices

AGENT, PARTNER = "player-1", "player-2"
TABLE = np.array([[80, 60, 50], [20, 30, 0], [0, 0, 10]])
PROPOSAL = "[propose] " + format_proposal(range(3))
SEEN = np.array([[1, 1, 1], [0, 0, 1], [0, 1, 1]], bool)
"""What the agent sees; the partner sees everything."""
WORTH = values_of_asking(np.stack([np.where(SEEN, TABLE, 0), np.where(SEEN, TABLE, 99)]), 0.8)
BEST, SECOND, WORST = sorted(np.argwhere(~SEEN).tolist(), key=lambda cell: -WORTH[tuple(cell)])


def judged(*turns, patience=None, seen=SEEN, rough=None):
    """Choices in a game in which the agent says `turns`, and the partner answers truly."""
    board = Board(TABLE, np.stack([seen, np.ones((3, 3), bool)]), np.ones(2), rough)
    game = MatchingGame(board, Limits(20, patience))
    said = []
    for text in turns:
        reply = "[accept]" if text == PROPOSAL else "[message] " + " ".join(answer(r, p, TABLE[r, p]) for r, p in ALL)
        said += [(AGENT, text), (PARTNER, reply)]
    return choices(game, AGENT, said, 0.8)


ALL = [(r, p) for r in range(3) for p in range(3)]


def ask(*cells):
    return question(*cells[0]) if len(cells) == 1 else "[message] " + " ".join(question(*c)[10:] for c in cells)


def test_the_values_of_this_board_differ():
    assert WORTH[tuple(BEST)] > WORTH[tuple(SECOND)] > WORTH[tuple(WORST)]


def test_the_best_cell_ranks_1_and_the_worst_0():
    assert [judged(ask(cell), PROPOSAL)["rank"] for cell in (BEST, SECOND, WORST)] == [1, 0.5, 0]


def test_the_cells_of_one_message_count_one_after_another():
    assert judged(ask(BEST, SECOND), PROPOSAL)["rank"] == 2
    assert judged(PROPOSAL, ask(BEST))["rank"] == 0  # it had stopped
    found = judged(ask(WORST, SECOND, BEST), PROPOSAL)
    assert (found["rank"], found["ranked"]) == (0 + 0, 2)  # the last one is no choice any more


def test_cells_of_which_it_knew_nothing_are_ranked_among_themselves():
    rough = np.zeros((3, 3), bool)
    rough[tuple(WORST)] = True
    found = judged(ask(SECOND), PROPOSAL, rough=rough)
    assert (found["rank"], found["rank_unknown"]) == (0.5, 0)
    found = judged(ask(SECOND), ask(WORST), ask(SECOND), ask(BEST), PROPOSAL, rough=rough)
    assert found["chosen_unknown"] == 2  # the second time it was no longer open
    assert found["ranked_unknown"] == 1  # the last one of its kind is no choice
