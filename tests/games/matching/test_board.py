import json
from itertools import islice, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from slim_rl.core.errors import UserError
from slim_rl.games.matching.board import (
    BATCH,
    Board,
    assignment_by_view,
    assignment_value,
    draw,
    generate_boards,
    passes,
    posterior_mean,
)
from slim_rl.games.matching.parameters import Parameters

# The rules again, written as simply as possible.


def plain_value(table, known):
    """DialOp's `find_max_value_known_assignment`: choose by what is known, score on the true table."""
    rows, columns = linear_sum_assignment(-1.0 * table * known - 50.0 * (1 - known))
    return int(table[rows, columns].sum())


def plain_keeps(table, masks, config):
    best = plain_value(table, masks[0] | masks[1])
    if config.selection == "dialop":
        return all(plain_value(table, mask) * config.stake < best for mask in masks)
    rows = np.arange(len(table))
    values = [table[rows, list(columns)].sum() for columns in permutations(rows)]
    return best > config.stake * np.mean(values)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"mask2": None}, "has no mask2"),
        ({"table": [[1, 2]]}, r"table must be a square matrix, not of shape \(1, 2\)"),
        ({"table": [[1, 2], [3]]}, "rows differ in length"),
        *(
            ({"table": [[1, 2], [3, number]]}, "table must hold whole numbers from 0 to 99")
            for number in ("d", 100, True, 4.5)
        ),
        ({"mask1": [[1]]}, "mask1 must be 2 x 2 like the table, not 1 x 1"),
        ({"mask2": [[0, 1], [2, 0]]}, "mask2 must hold whole numbers from 0 to 1"),
        *(
            ({"scale2": scale}, f"scale2 must be a number greater than 0 and at most 1000, not {scale!r}")
            for scale in (0, 10**19, "1", float("nan"))
        ),
        ({"best_assignment_reward": 6}, "records best_assignment_reward 6, but it is 5"),
        ({"best_assignment_reward": "5"}, "records best_assignment_reward '5', but it is 5"),
    ],
)
def test_a_bad_game_state_is_refused_in_a_sentence(change, sentence):
    good = {
        "table": [[1, 2], [3, 4]],
        "mask1": [[1, 1], [1, 1]],
        "mask2": [[0, 0], [0, 0]],
        "scale1": 1.0,
        "scale2": 2.5,
        "best_assignment_reward": 5,
    }
    assert Board.from_game_state({**good, "result": "extra keys are left alone"}).size == 2
    bad = {key: value for key, value in {**good, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=sentence):
        Board.from_game_state(bad)


@pytest.mark.parametrize("selection", ["dialop", "stakes"])
def test_same_seed_same_boards(selection):
    config = Parameters(size=3, selection=selection)
    boards, again, others = (
        [board.to_game_state() for board in generate_boards(count, seed, config)]
        for count, seed in ((150, 7), (70, 7), (70, 8))
    )
    assert again == boards[:70] != others
    assert len({json.dumps(state) for state in boards}) == 150


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(2, 8),
    seed=st.integers(0, 2**32),
    selection=st.sampled_from(["dialop", "stakes"]),
    stake=st.floats(1.0, 1.1),  # low, so that no board is kept only because 10,000 before it failed
)
def test_every_board_satisfies_the_rules(size, seed, selection, stake):
    config = Parameters(size=size, selection=selection, stake=stake)
    for board in generate_boards(3, seed, config):
        assert board.table.shape == (size, size) and board.table.dtype == np.int64
        assert board.table.min() >= 0 and board.table.max() <= 99
        assert (board.table[~board.masks.any(0)] == 50).all()
        assert all(config.scale_range[0] <= scale <= config.scale_range[1] for scale in board.scales)
        if size < 7 or selection == "dialop":  # 8! assignments would be too many
            assert plain_keeps(board.table, board.masks, config)
        assert board.best_assignment_reward == plain_value(board.table, board.masks.any(0))
        assert Board.from_game_state(board.to_game_state()).to_game_state() == board.to_game_state()


@pytest.mark.parametrize(
    ("size", "selection", "stake", "count", "values"),
    [
        (8, "dialop", 1.25, 10_000, ()),
        (8, "dialop", 1.1, 3_000, ()),  # many near the line
        (7, "dialop", 1.1, 1_000, ()),
        (6, "dialop", 1.1, 1_000, ()),
        (5, "dialop", 1.25, 5_000, ()),
        (2, "dialop", 1.25, 5_000, ()),
        (5, "dialop", 1.05, 3_000, (40, 50, 60)),  # many ties
        (8, "dialop", 1.05, 3_000, (0, 50, 99)),  # and the bounds
        (2, "stakes", 1.4, 1_000, ()),
        (3, "stakes", 1.4, 1_000, ()),
        (4, "stakes", 1.4, 1_000, ()),
        (5, "stakes", 1.25, 500, ()),
    ],
)
def test_the_screen_keeps_exactly_what_the_plain_rules_keep(size, selection, stake, count, values):
    config, rng = Parameters(size=size, selection=selection, stake=stake), np.random.default_rng(11)
    tables, masks = draw(count, rng, config)
    if values:
        tables = np.where(masks.any(0), rng.choice(values, tables.shape), 50).astype(np.int16)
    plain = [plain_keeps(tables[i], masks[:, i], config) for i in range(count)]
    fast = passes(tables, masks, config)
    assert 0 < fast.sum() < count
    assert fast.tolist() == plain
    own = assignment_by_view(Board(tables[0], masks[:, 0], np.ones(2)), masks[0, 0])
    assert assignment_value(tables[0], own) == plain_value(tables[0], masks[0, 0])


def test_a_block_holds_the_candidates_that_the_plain_rules_keep_in_their_order():
    config = Parameters(size=3, selection="dialop", stake=1.1)
    rng, boards = np.random.default_rng([5, 0]), generate_boards(40, 5, config)
    drawn = 0
    while drawn < 40:
        tables, masks = draw(BATCH, rng, config)
        for i in range(BATCH):
            if drawn < 40 and plain_keeps(tables[i], masks[:, i], config):
                board, drawn = next(boards), drawn + 1
                assert (board.table == tables[i]).all() and (board.masks == masks[:, i]).all()
                assert board.scales.tolist() == rng.uniform(1, 10, 2).tolist()


def test_candidates_are_drawn_as_the_rules_say():
    """Every score and mask independently: by quantiles of 30,000 draws of each, within five standard errors."""
    config = Parameters(size=3, p_agent=0.3, p_partner=0.6)
    tables, masks = draw(30_000, np.random.default_rng(0), config)
    assert masks.mean((1, 2, 3)) == pytest.approx([0.3, 0.6], abs=5 * (0.24 / 270_000) ** 0.5)
    assert (masks[0] & masks[1]).mean() == pytest.approx(0.18, abs=5 * (0.15 / 270_000) ** 0.5)
    scores = tables[masks.any(0)]
    assert (scores.min(), scores.max()) == (0, 99)
    shares = [(scores < limit).mean() for limit in (25, 50, 75)]
    assert shares == pytest.approx([0.25, 0.5, 0.75], abs=5 * (0.25 / len(scores)) ** 0.5)
    assert (tables[~masks.any(0)] == 50).all()


def test_dialop_keeps_the_board_after_10_001_rejections_as_it_is_counted_from_the_last_one_across_batches():
    # Both see everything, so no board passes. DialOp wants more than 10,000 rejections, counted from 0.
    config = Parameters(size=3, selection="dialop", p_agent=1, p_partner=1, scale_range=(1, 1))
    first, second, _ = generate_boards(3, 2, config)
    rng = np.random.default_rng([2, 0])
    tables = np.concatenate([draw(BATCH, rng, config)[0] for _ in range(10)])
    assert (first.table == tables[10_001]).all()
    rng.uniform(size=2)  # the scales of the first board
    tables = np.concatenate([tables, *(draw(BATCH, rng, config)[0] for _ in range(10))])
    assert (second.table == tables[20_003]).all()


def test_stakes_that_no_board_reaches_are_an_error_that_names_stake():
    config = Parameters(size=3, stake=50)
    with pytest.raises(UserError, match=r"lower games\.matching\.stake"):
        next(generate_boards(1, 0, config))


@pytest.mark.parametrize("player", [0, 1])
def test_posterior_mean_agrees_with_plain_rejection(player):
    config = Parameters(size=2, selection="dialop", p_agent=0.4, p_partner=0.7)
    rng = np.random.default_rng(9)
    board = next(islice(generate_boards(10, 4, config), 4, None))
    known, chance = board.masks[player], (0.4, 0.7)[1 - player]
    kept = []
    while len(kept) < 200:
        seen = rng.random((2, 2)) < chance
        table = np.where(known, board.table, np.where(seen, rng.integers(0, 100, (2, 2)), 50))
        masks = np.stack([known, seen] if player == 0 else [seen, known])
        if plain_keeps(table, masks, config):
            kept.append(table)
    mean = posterior_mean(board, player, config, rng, accepted=1_000)
    assert (mean[known] == board.table[known]).all()
    error = np.std(kept, 0) / np.sqrt(200) + 1e-9
    assert (np.abs(mean - np.mean(kept, 0)) < 5 * error).all()


def test_a_view_that_cannot_occur_is_expected_at_50():
    board = Board(np.full((3, 3), 7), np.ones((2, 3, 3), bool), np.ones(2))
    board.masks[0, 0, 0] = False
    mean = posterior_mean(board, 0, Parameters(size=3, stake=50), np.random.default_rng(0), batches=2)
    assert mean[0, 0] == 50 and (mean.ravel()[1:] == 7).all()
