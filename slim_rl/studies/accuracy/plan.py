"""Both checkpoints on the held-out tasks, in the policy's seats."""

from collections.abc import Iterator

from slim_rl.studies.accuracy.parameters import Parameters
from slim_rl.studies.series import Evaluation, Series


def series(run: Evaluation) -> Iterator[Series]:
    """The series `held-out` of each checkpoint, `samples` episodes of each task."""
    assert isinstance(run.parameters, Parameters)
    for player in run.checkpoints:
        seating, samples = run.seated(player), run.parameters.samples
        yield run.series(f"held-out/{player}", run.tasks, seating, samples=samples)
