"""What an answer is worth, against all answers tried one by one."""

import numpy as np
import pytest

from slim_rl.games.matching.board import expected, optimal_assignment
from slim_rl.games.matching.optimal import best_question, values_of_asking

P_KNOWN = 0.7


def best_sum(bounds):
    values = expected(bounds) if bounds.dtype == int else np.where(bounds[0] == bounds[1], bounds[0], expected(bounds))
    return values[np.arange(len(values)), optimal_assignment(values)].sum()


def told(bounds, cell, number):
    changed = bounds.astype(type(number))
    changed[:, *cell] = number
    return changed


def known_here_and_there(size, seed):
    """(2, N, N) bounds of scores, nothing known of about a third of them and another third known to within ten; and (N, N)
    bool, which ones these are."""
    rng = np.random.default_rng(seed)
    scores, unasked, rough = (
        rng.integers(0, 100, (size, size)),
        rng.random((size, size)) < 0.6,
        rng.random((size, size)) < 0.5,
    )
    low, high = np.where(rough, scores // 10 * 10, 0), np.where(rough, scores // 10 * 10 + 9, 99)
    return np.stack([np.where(unasked, low, scores), np.where(unasked, high, scores)]), unasked


@pytest.mark.parametrize("size", [3, 6])  # by listing all assignments, and without
def test_the_value_of_asking_is_the_mean_gain_over_all_answers(size):
    bounds, _ = known_here_and_there(size, seed=size)
    found = values_of_asking(bounds, P_KNOWN)
    assert {0, 9, 99} == set((bounds[1] - bounds[0]).ravel().tolist())
    for cell in np.ndindex(size, size):
        answers = range(bounds[0][cell], bounds[1][cell] + 1)
        gains = [best_sum(told(bounds, cell, number)) - best_sum(bounds) for number in answers]
        assert found[cell] == pytest.approx(P_KNOWN * max(0, np.mean(gains))), cell


@pytest.mark.parametrize("price", [0.0, 4.0])
def test_the_best_question_looks_at_the_question_after_it(price):
    other_than_greedy = 0
    for seed in range(60):
        bounds, unasked = known_here_and_there(3, seed)

        def after(cell, number, bounds=bounds, unasked=unasked):
            """What one more question is worth once `cell` is told; NaN: the other player does not know it."""
            left = unasked.copy()
            left[cell] = False
            known = bounds if np.isnan(number) else told(bounds, cell, number)
            return max(0.0, (values_of_asking(known, P_KNOWN) - price)[left].max(initial=0.0))

        worth = {}
        for cell in map(tuple, np.argwhere(unasked).tolist()):
            low, high = bounds[:, *cell].tolist()
            tenths = [low + (high + 1 - low) * share - 0.5 for share in np.arange(0.05, 1, 0.1).tolist()]
            known = P_KNOWN * np.mean([after(cell, number) for number in tenths])
            worth[cell] = values_of_asking(bounds, P_KNOWN)[cell] - price + known + (1 - P_KNOWN) * after(cell, np.nan)
        best = max(worth, key=worth.get)
        found = best_question(bounds, unasked, 2, price, P_KNOWN)
        assert found == (best if worth[best] > 1e-9 else None) or worth[found] == pytest.approx(worth[best])
        other_than_greedy += found != best_question(bounds, unasked, 1, price, P_KNOWN)
    assert other_than_greedy


@pytest.mark.slow
def test_with_three_questions_left_two_steps_are_nearly_as_good_as_three():
    """Exact for ten equally likely answers; with two questions left the rule is exact by itself."""
    tenths, lost, worth = np.arange(0.05, 1, 0.1), [], []
    for seed in range(8):
        bounds, unasked = known_here_and_there(3, seed)

        def value(bounds, unasked, cell, left):
            """What it is worth to ask for `cell`, and then for the best `left` - 1 others; the partner knows all."""
            now, rest = values_of_asking(bounds, 1.0)[cell], unasked.copy()
            rest[cell] = False
            if left == 1 or not rest.any():
                return now
            low, high = bounds[:, *cell]
            later = (told(bounds, cell, low + (high + 1 - low) * share - 0.5) for share in tenths.tolist())
            return now + np.mean([best(changed, rest, left - 1)[0] for changed in later])

        def best(bounds, unasked, left, value=value):
            if left == 1:
                return max(0.0, values_of_asking(bounds, 1.0)[unasked].max()), None
            return max((value(bounds, unasked, cell, left), cell) for cell in map(tuple, np.argwhere(unasked).tolist()))

        optimum, _ = best(bounds, unasked, 3)
        if (chosen := best_question(bounds, unasked, 3, 0.0, 1.0)) is None:
            continue  # no answer can matter
        lost.append(optimum - value(bounds, unasked, chosen, 3))
        worth.append(optimum)
    assert min(lost) > -1e-9 and 0 < np.mean(lost) < 0.01 * np.mean(worth)


def test_nothing_is_asked_that_cannot_be_asked_or_does_not_pay():
    bounds, unasked = known_here_and_there(3, seed=0)
    assert best_question(bounds, unasked, 2, 0.0) is not None
    assert best_question(bounds, unasked, 0, 0.0) is best_question(bounds, unasked & False, 2, 0.0) is None
    assert best_question(bounds, unasked, 1, 50.0) is best_question(bounds, unasked, 2, 50.0) is None
