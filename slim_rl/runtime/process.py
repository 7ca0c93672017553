"""Ends processes with everything they started, and waits for conditions."""

import os
import signal
import subprocess
import time
from collections.abc import Callable


def end(process: subprocess.Popen, grace_seconds: float = 10.0) -> None:
    """End a process that leads its own session, and everything it started: SIGTERM first, SIGKILL later.

    Safe to call for a process that has ended.
    """
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except ProcessLookupError:
            break
        wait_until(lambda: not _alive(process), grace_seconds, 0.05)
    process.wait()


def wait_until(ready: Callable[[], bool], seconds: float, every_seconds: float = 0.2) -> bool:
    """Wait until `ready()`, for at most `seconds`. Returns whether it became ready."""
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            return False
        time.sleep(every_seconds)
    return True


def _alive(process: subprocess.Popen) -> bool:
    process.poll()  # reaps it; a zombie would count as alive
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
