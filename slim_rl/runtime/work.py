"""Where a stage keeps unfinished work, and what that work depends on."""

import ast
import hashlib
import json
import os
from pathlib import Path
from typing import Any

WORK_VARIABLE = "SLIM_RL_WORK"
"""The environment variable with another folder than `.work`, for processes that run in a copy of the workspace."""
_PACKAGE = Path(__file__).parents[1]
_CODE = ("core", "engines", "games", "players", "rollout", "runtime/team.py", "sandbox", "training")
"""The rooms that make episodes and weights."""


def work_root() -> Path:
    """The folder of what `make clean` shows: unfinished work, and the replies of paid services."""
    return Path(os.environ.get(WORK_VARIABLE) or ".work")


def work_folder(root: Path, *inputs: Any) -> Path:
    """A folder for a stage's work that belongs to these inputs, and to this code, alone.

    It stays when the work is done, and when code or parameters change: only `make clean` removes it. So an
    interruption at any moment, also before DVC has seen the outputs, finds everything there.

    Args:
        inputs: JSON values; a path stands for the names and contents of all files below it.
    """
    folder = root / fingerprint(*inputs, *(_PACKAGE / part for part in _CODE))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fingerprint(*inputs: Any) -> str:
    """16 hexadecimal digits that belong to these inputs; see `work_folder`.

    Of Python files only the code counts: a comment or a docstring changes nothing.
    """
    digest = hashlib.sha256()
    for value in inputs:
        if isinstance(value, Path):
            for file in sorted(p for p in [value, *value.rglob("*")] if p.is_file() and p.suffix != ".pyc"):
                name = file.relative_to(value)
                if not any(part.startswith(".") for part in name.parts):  # a .git, a cache
                    digest.update(str(name).encode() + b"\0" + _content(file))
        else:
            digest.update(json.dumps(value, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def _content(file: Path) -> bytes:
    if file.suffix != ".py":
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").digest()  # weights can be larger than the memory
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # a template, say, in a package of the user's own
        return file.read_bytes()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [part for part in body if not _is_docstring(part)]
    return ast.dump(tree).encode()


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
