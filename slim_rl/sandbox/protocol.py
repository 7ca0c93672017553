"""How `local.py` and a zygote talk over a socket. The zygote loads it by itself, so it imports nothing of ours."""

import struct

REQUEST = struct.Struct("dQ")
"""Seconds and bytes of memory. With it come FILES open files: source, input, output, errors, and what went wrong before the
program began: nothing, NOT_CONFINED or NOT_COMPILED."""
FILES = 5
NOT_CONFINED, NOT_COMPILED = b"F", b"S"
KILL = b"K"
"""Ends the program. Ignored if it has ended."""
ENDED = struct.Struct("i")
"""Its exit status, as `os.waitpid` returns it."""
