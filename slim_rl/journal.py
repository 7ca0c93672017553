"""A journal: a JSON line for each thing that happened, safe from `kill -9` the moment it is written.

For what costs too much to be lost and comes too often for a file of its own each time.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slim_rl.errors import UserError


def append_line(path: Path, value: Any) -> None:
    """Write `value` as the last line. Many processes and threads may do so at once.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One write to a file opened for appending; the newline before it ends a line that was cut off.
        with path.open("ab", buffering=0) as file:
            file.write(b"\n" + json.dumps(value).encode() + b"\n")
    except OSError as error:
        raise UserError(
            f"{path} could not be written: {error.strerror}. What was finished before is kept; "
            "make room and run the same command again."
        ) from error


def read_lines(path: Path) -> Iterator[Any]:
    """All values, but for one that was being written when its process was killed."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            if line:
                yield json.loads(line)
        except ValueError:
            continue
