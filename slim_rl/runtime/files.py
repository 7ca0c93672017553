"""Files that are there whole or not at all."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slim_rl.core.errors import UserError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises UserError where writing `path` raises OSError."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        reason = "the disk is full" if full else error.strerror or str(error)
        raise UserError(
            f"{path} could not be written: {reason}. What was finished before is kept; "
            "make room and run the same command again."
        ) from error


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write(temporary path)` make a file and move it to `path` once it is on disk.

    Raises:
        UserError: the disk is full or not writable; the temporary file is removed.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write(part)
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` in UTF-8; see `write_whole`."""
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))
