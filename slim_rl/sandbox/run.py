"""What came of running a program, and the limits of a run that are the same everywhere."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "error", "syntax", "timeout", "killed", "failed"]
"""`ok`: it ended with exit code 0. `error`: with another one. `syntax`: it cannot be compiled. `timeout`: it ran too
long. `killed`: a signal ended it, or it printed too much. `failed`: the sandbox broke; the program is not at fault."""
MEMORY_BYTES = 256 * 2**20
"""Address space of a program, the interpreter's included."""
OUTPUT_BYTES = 65536
"""A program that prints more is killed."""


@dataclass(frozen=True)
class Run:
    status: Status
    output: str = ""
    """What it printed; bytes that are not UTF-8 are replaced."""
    seconds: float = 0.0
    errors: str = ""
    """The beginning of its standard error; for `failed`, what broke."""
