"""Files that are there whole or not at all."""

import errno
import gzip
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows, by number, of a table in Parquet, JSON lines or a JSON list, the latter two also compressed (.gz). A
    value that is null is missing: pandas fills a row with them.

    Raises:
        UserError: the file cannot be read, or a row is no JSON object; the sentence names the line.
    """
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq  # a second

            rows = [json.loads(json.dumps(row, default=str)) for row in pq.read_table(path).to_pylist()]
        else:
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8-sig") as file:
                text = file.read()
            is_list = text.lstrip().startswith("[") and path.suffixes[:1] == [".json"]
            rows = json.loads(text) if is_list else text.split("\n")
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON lines or a table: {str(error).splitlines()[0]}.") from None
    for number, row in enumerate(rows, start=1):
        try:
            value = json.loads(row) if isinstance(row, str) and row.strip() else row
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number} is not JSON: {error}.") from None
        if isinstance(value, dict):
            yield number, {name: cell for name, cell in value.items() if cell is not None}
        elif not isinstance(value, str) or value.strip():
            raise UserError(f"{path}, line {number} is not a JSON object.")


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` in UTF-8; see `write_whole`."""
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))
