from pathlib import Path

import pytest

from slim_rl.evaluation.config import EvaluateConfig
from slim_rl.evaluation.series import Evaluation, Models
from slim_rl.players.config import ModelConfig
from slim_rl.studies.asking.parameters import Parameters
from tests.studies.asking.made import GAMES, write_run
from tests.studies.runs import report_on


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The folder of a run that was analyzed. Copy it before you change it."""
    folder = tmp_path_factory.mktemp("asking")
    write_run(folder)
    report_on(folder, GAMES)
    return folder


@pytest.fixture(scope="session")
def evaluate(matching):
    """evaluate(game, tasks): an evaluation of two checkpoints that nobody has to load."""

    def evaluate(game=matching, count=8, **parameters):
        tasks = list(matching.taskset.tasks("evaluate", count))
        checkpoints = {"base": Path("base"), "trained": Path("trained")}
        return Evaluation(
            game=game, parameters=Parameters(**parameters), evaluate=EvaluateConfig(), model=ModelConfig(), seed=0,
            folder=Path("episodes"), services=None, models=Models(EvaluateConfig(), ModelConfig()), tasks=tasks, checkpoints=checkpoints, snapshots={},
        )  # fmt: skip

    return evaluate
