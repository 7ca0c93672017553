"""How `local.py` and a zygote talk over pipes. Imports nothing, because the zygote loads it by itself."""

import struct

REQUEST = struct.Struct("=dQQII")
"""Seconds, bytes of memory, bytes of output, length of the source and of the input. Both follow."""
RESULT = struct.Struct("=BdII")
"""Place in STATUSES, seconds, length of the output and of the errors. Both follow."""
STATUSES = ("ok", "error", "syntax", "timeout", "killed", "failed")
