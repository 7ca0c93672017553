"""A DVC workspace in use: one run at a time, with the parameters of that run."""

import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slim_rl.config import PATH, RUN, Config, checked, composed, load_config
from slim_rl.core.errors import UserError
from slim_rl.runtime.code import work_root
from slim_rl.runtime.files import write_text
from stages import ready
from stages.dependencies import RUN_VARIABLE, write_run

LOCK = Path(".work/run.lock")
_GRACE_SECONDS = 75.0
"""A stage that is stopped may take a minute to end a server that it has started."""


def environment() -> dict[str, str]:
    """Variables for a process that finds this Python's commands, also where its environment is not activated."""
    path, own = os.environ.get("PATH", "").split(os.pathsep), str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join(path if own in path else [own, *path])}


@contextmanager
def sole_run(log: Callable[[str], None]) -> Iterator[int]:
    """Wait until no other run uses the workspace; yields the lock's file descriptor, see `_held`.

    Raises:
        UserError: the folder cannot be written.
    """
    with _held(LOCK, lambda: log(f"Another run uses the workspace {Path.cwd()}; waiting for it to end.")) as lock:
        yield lock


@contextmanager
def sole_stage() -> Iterator[None]:
    """Wait until no other stage plays or trains here. DVC does not pass the lock of the run on to its stages, and may be killed
    while a stage still waits for replies that are paid for."""
    with _held(
        work_root() / "stage.lock", lambda: print("A stage of an earlier run is still at work; waiting for it to end.")
    ):
        yield


@contextmanager
def _held(path: Path, before_waiting: Callable[[], None]) -> Iterator[int]:
    """The operating system holds the lock. Child processes that inherit the descriptor hold it too, so it ends with
    the last of them, however they end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("w")
    except OSError as error:
        raise UserError(f"The folder {path.parent.absolute()} cannot be written: {error.strerror}.") from None
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            before_waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


@contextmanager
def composed_run(profile: str | None = None, settings: Mapping[str, Any] | None = None) -> Iterator[Config]:
    """Compose the parameters of a run and check what can be known before it; see `slim_rl.config.composed`.

    They are in run.yaml, for this process and those that it starts, which find it by `RUN_VARIABLE`.

    Raises:
        UserError: a parameter is wrong, or something that the run needs is missing.
    """
    if found := os.environ.get(RUN_VARIABLE):
        if not RUN.exists() or not RUN.samefile(found):  # in an experiment's own folder
            write_text(RUN, Path(found).read_text(encoding="utf-8"))
            link_files(load_config(), Path(found).parent)
        yield load_config()
        return
    values = composed(profile, settings)
    config = checked(values, f"{PATH} with the profile {profile}" if profile else str(PATH))
    ready.check(config)
    write_run(values, profile, settings or {})
    os.environ[RUN_VARIABLE] = str(RUN.absolute())
    try:
        yield config
    finally:
        del os.environ[RUN_VARIABLE]


def grace_seconds(config: Config) -> float:
    """The time that a stage may take to end when it is stopped: it first waits for the paid replies under way."""
    return _GRACE_SECONDS + max((service.timeout_seconds for service in config.services.values()), default=0.0)


def link_files(config: Config, workspace: Path) -> None:
    """Link the files that the parameters name and that git, which makes an experiment's folder, has not brought there."""
    for path in ready.files(config):
        if not (path.is_absolute() or path.exists()) and (workspace / path).exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(workspace / path)
