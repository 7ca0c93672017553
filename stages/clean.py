"""Show what runs have left in .work, finished or not: its size, when it was last written, and what its API calls cost.

Folders of experiments that were killed are shown, too. `--yes` removes it, except replies of paid services (`--paid`
removes these, too). Nothing else ever removes it. DVC's own cache stays; `dvc gc --workspace` clears that.
"""

import datetime
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from slim_rl.core.errors import UserError
from slim_rl.players.services import ledgers
from slim_rl.runtime.cli import argument_parser, told_in_a_sentence
from slim_rl.runtime.code import work_root
from slim_rl.runtime.journal import read_lines
from stages.workspace import LOCK, sole_run, sole_stage

EXPERIMENTS = Path(".dvc/tmp/exps/standalone")  # as DVC names it


class Entry(NamedTuple):
    path: Path
    megabytes: float
    dollars: float
    written: float
    """Seconds since the epoch."""


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--yes", action="store_true", help="remove it")
    parser.add_argument("--paid", action="store_true", help="with --yes, remove also the replies of paid services")
    options = parser.parse_args()
    with told_in_a_sentence(), sole_run(print), sole_stage():  # nothing is in progress
        entries = list(unfinished())
        staying = [entry for entry in entries if has_replies(entry.path) and not options.paid]
        removable = [entry for entry in entries if entry not in staying]
        for entry in entries:
            day = datetime.date.fromtimestamp(entry.written)
            print(f"{entry.megabytes:9.1f} MB  ${entry.dollars:8.2f}  {day}  {entry.path}")
        if options.yes:
            for entry in removable:
                shutil.rmtree(entry.path) if entry.path.is_dir() else entry.path.unlink()
            print(f"Removed {_total(removable)}.")
        else:
            print(f"{_total(removable)}. Nothing was removed; `make clean YES=1` removes it.")
        if staying:
            print(f"Kept paid replies, {_total(staying)}; `make clean YES=1 PAID=1` removes them too.")


def unfinished() -> Iterator[Entry]:
    """A line for each stage's run in .work, each other file there, and each folder of an experiment."""
    parts = [part for path in work_root().glob("*") for part in (path.glob("*") if path.is_dir() else [path])]
    for part in [*sorted(parts), *sorted(EXPERIMENTS.glob("tmp*"))]:
        if part.suffix != LOCK.suffix:
            files = [file for file in [part, *part.rglob("*")] if file.is_file()]
            size = sum(file.stat().st_size for file in files)
            dollars = sum(_dollars(file) for file in files if file.suffix == ".jsonl")
            written = max((file.stat().st_mtime for file in files), default=part.stat().st_mtime)
            yield Entry(part, size / 1e6, dollars, written)


def has_replies(path: Path) -> bool:
    """Whether it is a file of paid replies, or the folder of an experiment that has its own."""
    return path.parent == ledgers() or any(path.glob(".work/services/*"))


def _total(entries: Sequence[Entry]) -> str:
    return f"{sum(e.megabytes for e in entries):.1f} MB that cost ${sum(e.dollars for e in entries):.2f}"


def _dollars(journal: Path) -> float:
    try:
        lines = [line for line in read_lines(journal) if isinstance(line, dict)]
    except UserError:  # it is damaged
        return math.nan
    return sum(line.get("dollars", 0.0) for line in lines)


if __name__ == "__main__":
    main()
