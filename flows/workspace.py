"""A DVC workspace in use: one run at a time, its parameters, and `dvc repro` as a process that can be ended."""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from slim_rl.config import load_config
from slim_rl.errors import UserError

PARAMETERS, SET_ASIDE, LOCK = Path("params.yaml"), Path(".work/params.yaml"), Path(".work/run.lock")
_GRACE_SECONDS = 10.0


@contextmanager
def sole_run(log: Callable[[str], None]) -> Iterator[int]:
    """Wait until no other run uses the workspace; yields the lock's file descriptor.

    The lock is the operating system's: it ends with the last process that holds it, however that ends.
    """
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"Another run uses the workspace {Path.cwd()}; waiting for its end.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


@contextmanager
def overridden(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Set `parameters`, by dotted name, in params.yaml, and put the file back in the end.

    A run that was killed leaves the file that it set aside; the next one puts it back first.

    Raises:
        UserError: there is no such parameter, or not with this value.
    """
    if SET_ASIDE.exists():
        os.replace(SET_ASIDE, PARAMETERS)
    if not parameters:
        yield
        return
    SET_ASIDE.write_bytes(PARAMETERS.read_bytes())
    try:
        values = yaml.safe_load(PARAMETERS.read_text(encoding="utf-8")) or {}
        for name, value in parameters.items():
            *sections, last = name.split(".")
            inner = values
            for section in sections:
                inner = inner.setdefault(section, {})
            inner[last] = value
        PARAMETERS.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        load_config()
        yield
    finally:
        os.replace(SET_ASIDE, PARAMETERS)


def stages() -> list[str]:
    """The stages of dvc.yaml, each after those that it needs."""
    from dvc.repo import Repo  # heavy, and not for who only plays episodes
    from networkx import topological_sort

    graph = Repo(".").index.graph
    return [stage.name for stage in reversed(list(topological_sort(graph)))]


def repro(stage: str, lock: int, log: Callable[[str], None]) -> str:
    """Let DVC bring one stage up to date; returns what it did: `ran`, `restored` from its cache or `skipped`.

    Whatever ends this call ends DVC and the stage's own processes with it.

    Args:
        lock: of `sole_run`; while any process of the stage lives, the workspace is in use.
        log: gets the output, a line at a time.

    Raises:
        UserError: the stage failed; the sentence is the stage's own.
    """
    process = subprocess.Popen(
        ["dvc", "repro", "--single-item", stage],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,  # a bar's carriage returns end lines, too
        errors="replace",
        start_new_session=True,
        pass_fds=[lock],
        env={**os.environ, "TQDM_MININTERVAL": "10", "PYTHONUNBUFFERED": "1"},
    )
    did, complaint = "skipped", ""
    try:
        for line in process.stdout:
            if line := line.rstrip():
                log(line)
            if line.startswith("error: "):
                complaint = line.removeprefix("error: ")
            if line.startswith("Running stage "):
                did = "ran"
            elif "is cached - skipping run" in line:
                did = "restored"
        if process.wait():
            raise UserError(
                complaint or f"`dvc repro --single-item {stage}` ended with {process.returncode}."
            )
    finally:
        end(process)
    return did


def end(process: subprocess.Popen) -> None:
    """End a process and all that it started, politely first. Safe to call for one that has ended."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except ProcessLookupError:
            break
        until = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < until and _lives(process):
            time.sleep(0.05)
    process.wait()


def _lives(process: subprocess.Popen) -> bool:
    process.poll()  # a zombie would count
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
