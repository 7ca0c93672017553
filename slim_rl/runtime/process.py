"""Starting other processes, and ending them with all that they started."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

_GRACE_SECONDS = 10.0


def end(process: subprocess.Popen, grace_seconds: float = _GRACE_SECONDS) -> None:
    """End a process that leads a session of its own, and all that it started, politely first.

    Safe to call for one that has ended.
    """
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except ProcessLookupError:
            break
        wait_until(lambda: not _lives(process), grace_seconds, 0.05)
    process.wait()


def wait_until(ready: Callable[[], bool], seconds: float, every_seconds: float = 0.2) -> bool:
    """Wait until `ready()`, at most so long; returns whether it became ready."""
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            return False
        time.sleep(every_seconds)
    return True


def _lives(process: subprocess.Popen) -> bool:
    process.poll()  # a zombie would count
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
