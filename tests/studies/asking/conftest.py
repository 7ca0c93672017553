import pytest

from slim_rl.studies.asking.parameters import Parameters
from tests.studies.asking.made import GAMES, write_run
from tests.studies.runs import evaluation, report_on


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The folder of a run that was analyzed. Copy it before you change it."""
    folder = tmp_path_factory.mktemp("asking")
    write_run(folder)
    report_on(folder, GAMES)
    return folder


@pytest.fixture(scope="session")
def evaluate(matching):
    """evaluate(game, count): an evaluation of two checkpoints that nobody has to load."""

    def evaluate(game=matching, count=8, **parameters):
        return evaluation(game, Parameters(**parameters), list(matching.taskset.tasks("evaluate", count)))

    return evaluate
