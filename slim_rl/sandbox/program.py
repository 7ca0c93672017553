"""The program in a model's reply."""

import re

_BLOCK = re.compile(r"^```[^\n`]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


def program_in(reply: str) -> str | None:
    """The program in a reply: its only fenced block, or all of it if there is no fence. None if it is blank, or if there
    are several blocks."""
    blocks = _BLOCK.findall(reply) or [reply]
    return blocks[0] if len(blocks) == 1 and blocks[0].strip() else None
