"""What an answer is worth, against all answers tried one by one."""

import numpy as np
import pytest

from slim_rl.games.matching.board import optimal_assignment
from slim_rl.games.matching.value import best_question, values_of_asking

P_KNOWN = 0.7


def best_sum(values):
    return values[np.arange(len(values)), optimal_assignment(values)].sum()


def told(values, cell, number):
    changed = values.copy()
    changed[cell] = number
    return changed


def known_here_and_there(size, seed):
    """(N, N) float scores, 50 in about half of the cells, and (N, N) bool, which ones these are."""
    rng = np.random.default_rng(seed)
    unasked = rng.random((size, size)) < 0.5
    return np.where(unasked, 50.0, rng.integers(0, 100, (size, size))), unasked


@pytest.mark.parametrize("size", [3, 6])  # by listing all assignments, and without
def test_the_value_of_asking_is_the_mean_gain_over_all_answers(size):
    values, _ = known_here_and_there(size, seed=size)
    found = values_of_asking(values, P_KNOWN)
    for cell in np.ndindex(values.shape):
        gains = [best_sum(told(values, cell, number)) - best_sum(values) for number in range(100)]
        assert found[cell] == pytest.approx(P_KNOWN * np.mean(gains)), cell


@pytest.mark.parametrize("price", [0.0, 4.0])
def test_the_best_question_looks_at_the_question_after_it(price):
    other_than_greedy = 0
    for seed in range(20):
        values, unasked = known_here_and_there(3, seed)

        def after(cell, number, values=values, unasked=unasked):
            """What one more question is worth once `cell` is told; NaN: the other player does not know it."""
            known, left = values if np.isnan(number) else told(values, cell, number), told(unasked, cell, False)
            return max(0.0, (values_of_asking(known, P_KNOWN) - price)[left].max(initial=0.0))

        deciles = np.arange(4.5, 100, 10)
        worth = {
            cell: values_of_asking(values, P_KNOWN)[cell]
            - price
            + P_KNOWN * np.mean([after(cell, number) for number in deciles])
            + (1 - P_KNOWN) * after(cell, np.nan)
            for cell in map(tuple, np.argwhere(unasked).tolist())
        }
        best = max(worth, key=worth.get)
        found = best_question(values, unasked, 2, price, P_KNOWN)
        assert found == (best if worth[best] > 1e-9 else None) or worth[found] == pytest.approx(worth[best])
        other_than_greedy += found != best_question(values, unasked, 1, price, P_KNOWN)
    assert other_than_greedy


def test_nothing_is_asked_that_cannot_be_asked_or_does_not_pay():
    values, unasked = known_here_and_there(3, seed=0)
    assert best_question(values, unasked, 2, 0.0) is not None
    assert best_question(values, unasked, 0, 0.0) is best_question(values, unasked & False, 2, 0.0) is None
    assert best_question(values, unasked, 1, 50.0) is best_question(values, unasked, 2, 50.0) is None
