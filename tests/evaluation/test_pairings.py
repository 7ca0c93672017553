"""Who meets whom in a game with winners."""

from pathlib import Path

import pytest

from slim_rl.config import Config
from slim_rl.evaluation.matches import match_series
from slim_rl.evaluation.series import Evaluation

CHECKPOINTS = {name: Path(name) for name in ("base", "trained")}
SNAPSHOTS = {f"step-{n:05d}": Path(str(n)) for n in range(0, 60, 10)}


def met(**evaluate):
    """The pairs of models that play each other, and everything that is played."""
    config = Config.model_validate({"game": "kuhn", "evaluate": evaluate})
    run = Evaluation(config, Path("e"), None)
    names = [series.folder.name for series in match_series(run, [], CHECKPOINTS, SNAPSHOTS)]
    models = {*CHECKPOINTS, *SNAPSHOTS}
    pairs = [tuple(name.split("-against-")) for name in names]
    return {pair for pair in pairs if set(pair) <= models}, set(pairs)


@pytest.mark.parametrize(("ranked", "snapshots"), [(0, 0), (1, 1), (2, 2), (4, 3), (99, 6)])
def test_so_many_snapshots_play_each_other_the_last_one_among_them(ranked, snapshots):
    models, _ = met(ranked=ranked)
    playing = {name for pair in models for name in pair} - set(CHECKPOINTS)
    assert len(playing) == snapshots and (not playing or max(SNAPSHOTS) in playing)


def test_everybody_meets_those_without_a_model_from_both_seats():
    _, pairs = met()
    for model in (*CHECKPOINTS, *SNAPSHOTS):
        for opponent in ("random", "scripted"):
            assert {(model, opponent), (opponent, model)} <= pairs


@pytest.mark.parametrize("evaluate", [{"temperature": 0}, {"server": "serve {model} {port}"}])
def test_models_do_not_meet_where_it_would_tell_nothing_or_cannot_be(evaluate):
    assert met(**evaluate)[0] == set()
