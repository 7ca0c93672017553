"""Reads what a model or its program wrote: none of it is run here, and whatever it is, reading it has a defined outcome."""

import ast
import re
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_BLOCK = re.compile(r"^```[^\n`]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


class Unreadable(ValueError):
    """The text is no program, or no literal."""


def program_in(reply: str) -> str | None:
    """The program in a reply: its only fenced block, or all of it if there is no fence. None if it is blank, or if there
    are several blocks."""
    blocks = _BLOCK.findall(reply) or [reply]
    return blocks[0] if len(blocks) == 1 and blocks[0].strip() else None


def syntax_of(program: str) -> ast.Module:
    """The syntax tree of a program. Raises Unreadable."""
    return _read(ast.parse, program)


def literal_in(text: str) -> Any:
    """The value of a Python literal. Raises Unreadable."""
    return _read(ast.literal_eval, text)


def _read(read: Callable[[str], T], text: str) -> T:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about the model's text
            return read(text)
    except Exception as error:  # of many kinds: "9" * 400 + "+1j" is an OverflowError, deep nesting a MemoryError
        raise Unreadable(f"{type(error).__name__}: {error}") from None
