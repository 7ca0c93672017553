"""Both checkpoints on the held-out tasks, in the policy's seats."""

from slim_rl.evaluation.series import Evaluation, Series
from slim_rl.studies.accuracy.parameters import Parameters


def series(run: Evaluation) -> list[Series]:
    """The series `held-out` of each checkpoint, `samples` episodes of each task."""
    assert isinstance(run.parameters, Parameters)
    samples = run.parameters.samples
    return [
        run.series(f"held-out/{player}", run.tasks, run.seated(player), samples=samples) for player in run.checkpoints
    ]
