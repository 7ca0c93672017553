"""A journal: a JSON line for each thing that happened, safe from `kill -9` the moment it is written.

For what costs too much to be lost and comes too often for a file of its own each time.
"""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slim_rl.core.errors import UserError
from slim_rl.runtime.files import writing

_NAMED_LINES = 50


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


def read_lines(
    path: Path,
    read: Callable[[Any], Any] = lambda value: value,
    loss: Callable[[list[Any], int], str] = lambda values, damaged: "What they held is lost.",
) -> list[Any]:
    """All values, but for those that were being written when their process was killed.

    Args:
        read: makes something of a value. Raises ValueError, TypeError or LookupError if the value is none of its kind.
        loss: a sentence that says what damaged lines cost, from the other lines' values and the number of damaged ones.

    Raises:
        UserError: lines are damaged.
    """
    values: list[Any] = []
    damaged: list[int] = []
    torn = True
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, (line, after) in enumerate(zip(lines, [*lines[1:], b"the end"], strict=False), 1):
        if not line:
            torn = True
            continue
        try:
            values.append(read(json.loads(line)))
            torn = False
        except (ValueError, TypeError, LookupError, RecursionError):
            torn = torn and after != b""  # `append` writes a newline before each line and one after it
            if not torn:
                damaged.append(number)
    if damaged:
        some = damaged[:_NAMED_LINES]
        more = f" and {len(damaged) - len(some)} more" if len(damaged) > len(some) else ""
        raise UserError(
            f"{path} is damaged in line {', '.join(map(str, some))}{more}. {loss(values, len(damaged))} Mend them, or go on "
            f"without them: sed -i '{';'.join(f'{number}d' for number in some)}' {path}"
        )
    return values
