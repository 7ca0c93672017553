"""What was noted is not lost, and what could not be noted is told."""

import subprocess
import sys

from slim_rl.runtime.journal import read_lines

FULL = """
import resource
from pathlib import Path
from slim_rl.core.errors import UserError
from slim_rl.runtime.journal import Journal
journal = Journal(Path("notes.jsonl"))
journal.append("a" * 100)
resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.RLIM_INFINITY))
try:
    journal.append("b" * 100)
except UserError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.append("c")
"""


def test_a_line_of_which_only_a_part_fits_is_an_error_and_the_next_one_is_read(tmp_path):
    """A limit of the file's size stands in for a full disk."""
    done = subprocess.run([sys.executable, "-c", FULL], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "notes.jsonl could not be written: the disk is full" in done.stdout
    assert list(read_lines(tmp_path / "notes.jsonl")) == ["a" * 100, "c"]
