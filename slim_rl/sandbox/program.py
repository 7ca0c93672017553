"""Reads what a model or its program wrote: none of it is run here, and whatever it is, reading it has a defined outcome."""

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
MAX_CHARACTERS = 100_000
"""Longer text is not read, because the parser's time is not linear in the worst case."""
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^\s`]*)[^`\n]*$")
_DEFINES = re.compile(r"^(?:async[ ]+def|def|class)\b", re.MULTILINE)
_TAG = re.compile(r"^[ \t]*\[(/?PYTHON|BEGIN|DONE)\][ \t]*$", re.MULTILINE)
"""Code Llama's fences, and those of MBPP's own prompt."""
_PYTHON = {"python", "python3", "py", "py3", "{.python}"}


class Unreadable(ValueError):
    """The text is no program, or no literal."""


def program_in(reply: str) -> str | None:
    """The program in a reply, as chat models write it; all of it if there is no fence.

    Of several fenced blocks those in Python count, if some say that they are; of these the ones that define a function or
    class, if there are any. The others are examples and output. The last block may be cut. Where that is no Python, a fence may
    be a part of the program (in a docstring), or close a block that the prompt has opened.

    Returns:
        None if there is none, or several that define nothing.
    """
    if "```" not in reply and not _is_python(reply):
        reply = _TAG.sub(lambda tag: "```" if tag[1] in ("/PYTHON", "DONE") else "```python", reply)
    blocks = list(_blocks(reply)) or [("", reply)]
    texts = [text for tag, text in blocks if tag in _PYTHON] or [text for _, text in blocks]
    texts = [text for text in texts if text.strip()]
    if len(texts) > 1:
        texts = ["\n".join(text for text in texts if _DEFINES.search(text))]
    first = texts[0] if texts and texts[0] else None
    return first if first and _is_python(first) else next(filter(_is_python, _around_fences(reply)), first)


def _around_fences(reply: str) -> Iterator[str]:
    """What is between the first fence and the last; or before the only one, which names no language."""
    lines = reply.split("\n")
    fences = {number: fence[3] for number, line in enumerate(lines) if (fence := _FENCE.match(line))}
    if len(fences) > 1:
        yield "\n".join([*lines[min(fences) + 1 : max(fences)], ""])
    elif list(fences.values()) == [""]:
        yield "\n".join([*lines[: min(fences)], ""])


def _is_python(text: str) -> bool:
    """Whether it is a program that does something."""
    try:
        return bool(syntax_of(text).body)
    except Unreadable:
        return False


def _blocks(reply: str) -> Iterator[tuple[str, str]]:
    """The language and the text of each fenced block."""
    opened: re.Match[str] | None = None
    lines: list[str] = []
    for line in reply.split("\n"):
        fence = _FENCE.match(line)
        if opened is None:
            opened, lines = fence, []
        elif fence and fence[2].startswith(opened[2]) and line.strip() == fence[2]:
            yield opened[3].lower(), "\n".join([*lines, ""])
            opened = None
        else:
            lines.append(line.removeprefix(opened[1]))
    if opened is not None:
        yield opened[3].lower(), "\n".join(lines)


def syntax_of(program: str) -> ast.Module:
    """The syntax tree of a program. Raises Unreadable."""
    return _read(ast.parse, program)


def literal_in(text: str) -> Any:
    """The value of a Python literal. Raises Unreadable."""
    return _read(ast.literal_eval, text)


def _read(read: Callable[[str], T], text: str) -> T:
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"it has more than {MAX_CHARACTERS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about the model's text
            return read(text)
    except Exception as error:  # of many kinds: "9" * 400 + "+1j" is an OverflowError, deep nesting a MemoryError
        raise Unreadable(f"{type(error).__name__}: {error}") from None
