"""What computes here, in words."""

import os
import platform
from pathlib import Path


def machine() -> str:
    """The GPU that models run on, or how many cores of which processor."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{cores()} cores of {processor()}"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
