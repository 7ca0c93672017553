"""A journal: a JSON line for each thing that happened, safe from `kill -9` the moment it is written.

For what costs too much to be lost and comes too often for a file of its own each time.
"""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slim_rl.runtime.files import writing


class Journal:
    """The file at `path`, kept open. Many processes and threads may append to it at once.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """

    def __init__(self, path: Path):
        self._path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)

    def append(self, value: Any) -> None:
        """Write `value` as the last line."""
        with writing(self._path):
            # One write to a file opened for appending; the newline before it ends a line that was cut off.
            line = b"\n" + json.dumps(value).encode() + b"\n"
            if self._file.write(line) < len(line):  # a part of it fitted
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        self._file.close()


def append_line(path: Path, value: Any) -> None:
    """Write `value` as the last line of a file that is not kept open."""
    journal = Journal(path)
    journal.append(value)
    journal.close()


def read_lines(path: Path) -> Iterator[Any]:
    """All values, but for one that was being written when its process was killed."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            if line:
                yield json.loads(line)
        except ValueError:
            continue
