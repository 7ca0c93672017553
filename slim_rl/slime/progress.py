"""The metrics of a run, from SLIME's processes to the stage that waits for them."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from slim_rl.runtime.journal import append_line, read_lines

HELD_OUT = "held_out"
"""SLIME's name of the evaluation on held-out tasks."""
METRICS = "metrics.jsonl"
"""In the folder of a run, a line for each rollout and each evaluation."""
_POLL_SECONDS = 20.0

Log = Callable[[dict[str, float], int], None]


def note_metrics(folder: Path, rollout: int, step: int, metrics: dict[str, float]) -> None:
    """Add the metrics of `step` to the run's.

    Args:
        rollout: the last one before them. If SLIME plays it again, the metrics come again.
    """
    append_line(folder / METRICS, {"rollout": rollout, "step": step, "metrics": metrics})


def held_out(folder: Path) -> pd.DataFrame:
    """The evaluations on held-out tasks so far: `step`, and the metrics of `slim_rl.rollout.summary.describe`."""
    prefix = f"{HELD_OUT}/"
    rows: dict[int, dict[str, float]] = {}  # a repeated step counts once
    for line in read_lines(folder / METRICS):
        if metrics := {name.removeprefix(prefix): v for name, v in line["metrics"].items() if name.startswith(prefix)}:
            rows[line["step"]] = {"step": line["step"], **metrics}
    return pd.DataFrame([rows[step] for step in sorted(rows)])


class Progress:
    """Passes the metrics in `folder` on, each step once.

    Args:
        saved: rollouts with a checkpoint. SLIME continues after the last, so the metrics of later ones come again.
        log: is called with the metrics and their step.
    """

    def __init__(self, folder: Path, saved: Sequence[int], log: Log):
        self._path, self._log = folder / METRICS, log
        lines = list(read_lines(self._path))
        self._logged = len(lines)
        last = max(saved, default=-1)
        kept = (line for line in lines if line.get("rollout", line["step"]) <= last)  # no older line has a rollout
        past = {(line["step"], *line["metrics"]): line for line in kept}
        for line in sorted(past.values(), key=lambda line: line["step"]):
            log(line["metrics"], line["step"])

    def tell(self) -> None:
        """Log the new lines."""
        lines = list(read_lines(self._path))[self._logged :]
        self._logged += len(lines)
        for line in lines:
            self._log(line["metrics"], line["step"])

    async def report(self) -> None:
        """Log new lines until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            self.tell()
