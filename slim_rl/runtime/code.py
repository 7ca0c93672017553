"""What code depends on, found without running it, and a digest of it; where a stage keeps unfinished work."""

import ast
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WORK_VARIABLE = "SLIM_RL_WORK"
"""The environment variable with another folder than `.work`, for processes that run in a copy of the workspace."""
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages, in this environment, one below it, or the user's."""
_OURS = {"slim_rl", "stages"}
"""They count module by module wherever they are, because a stage depends on few of them."""


def work_root() -> Path:
    """The folder of what `make clean` shows: unfinished work, and the replies of paid services."""
    return Path(os.environ.get(WORK_VARIABLE) or ".work")


def work_folder(stage: str, *inputs: Any) -> Path:
    """A folder for a stage's work that belongs to these inputs alone; see `fingerprint`.

    It stays when the work is done, and when code or parameters change: only `make clean` removes it. So an
    interruption at any moment, also before DVC has seen the outputs, finds everything there.
    """
    folder = work_root() / stage / fingerprint(*inputs)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fingerprint(*inputs: Any) -> str:
    """16 hexadecimal digits of the inputs: JSON values, and paths, which stand for all files below them.

    Of Python files only the code counts: a comment or a docstring changes nothing.
    """
    digest = hashlib.sha256()
    for value in inputs:
        if isinstance(value, Path):
            for file in _files(value):
                digest.update(str(file.relative_to(value)).encode() + b"\0" + _content(file))
        else:
            digest.update(json.dumps(value, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def dependencies(names: Iterable[str]) -> list[str]:
    """What modules reach by imports, a line each with a digest or a version:

    - `module NAME`: themselves and our and the user's own modules, also if they are imported only inside a function, but
      not for type checkers alone;
    - `package NAME`: installed packages;
    - `file PATH`: files beside a module that it opens, because it uses `__file__` and names them in a string.
    """
    modules: dict[str, Path] = {}
    packages: set[str] = set()
    files: set[Path] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        top = name.partition(".")[0]
        if name in modules or top in sys.stdlib_module_names:
            continue
        if _is_installed(top):
            packages.add(top)
            continue
        if (path := module_file(name)) is None:
            continue  # an attribute of a module, or a module that is not there
        modules[name] = path
        imports, beside = _read(name, path, path.stat().st_mtime_ns)
        files |= beside
        todo += [*imports, *([name.rpartition(".")[0]] if "." in name else [])]
    return [
        *(f"module {name} {_digest(path)}" for name, path in sorted(modules.items())),
        *sorted(f"package {_distribution(name)}" for name in packages),
        *file_lines(files),
    ]


def file_lines(paths: Iterable[Path]) -> list[str]:
    """A line with a digest for each file."""
    here = Path.cwd()
    names = {str(path.relative_to(here) if path.is_relative_to(here) else path): path for path in paths}
    return [f"file {name} {fingerprint(path)}" for name, path in sorted(names.items())]


def module_file(name: str) -> Path | None:
    """The file of a module, which is not imported for that; None if there is none."""
    top, *rest = name.split(".")
    spec = _spec(top)
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.has_location and spec.origin else None
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, *rest)
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return file
    return None


def parsed(path: Path) -> ast.Module:
    """A module's code without docstrings. Raises SyntaxError or ValueError: it is not Python."""
    return _parsed(path, path.stat().st_mtime_ns)


@cache
def _parsed(path: Path, changed: int) -> ast.Module:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [part for part in body if not _is_docstring(part)]
    return tree


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _digest(path: Path) -> str:
    return hashlib.sha256(_code(path, path.stat().st_mtime_ns)).hexdigest()[:16]


@cache
def _code(path: Path, changed: int) -> bytes:
    try:
        return ast.dump(parsed(path)).encode()
    except (SyntaxError, ValueError):  # a template, say, in a package of the user's own
        return path.read_bytes()


def _content(file: Path) -> bytes:
    if file.suffix == ".py":
        return _code(file, file.stat().st_mtime_ns)
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()  # weights can be larger than the memory


def _files(path: Path) -> list[Path]:
    """The files below a path, but no caches and nothing hidden."""
    every = (file for file in [path, *path.rglob("*")] if file.is_file() and file.suffix != ".pyc")
    return sorted(f for f in every if not any(part.startswith(".") for part in f.relative_to(path).parts))


@cache
def _spec(top: str) -> Any:
    try:
        return find_spec(top)
    except (ImportError, ValueError):  # `__main__`, say
        return None


@cache
def _is_installed(top: str) -> bool:
    spec = _spec(top)
    if not (spec and spec.origin) or top in _OURS:
        return False
    file = Path(spec.origin)
    folder = file.parents[1] if spec.submodule_search_locations else file.parent
    by_target_option = any(folder.glob("*.dist-info"))  # pip install --target
    return by_target_option or bool(_INSTALLED & {*file.parts})


@cache
def _distribution(top: str) -> str:
    """Name and version of the package that a module comes from."""
    try:
        return f"{top} {version(top)}"
    except PackageNotFoundError:  # yaml is of PyYAML
        return f"{top} {'+'.join(version(name) for name in packages_distributions().get(top, ()))}"


@cache
def _read(name: str, path: Path, changed: int) -> tuple[list[str], set[Path]]:
    """The names that a module imports, which may be modules or attributes, and the files beside it that it opens."""
    try:
        tree = parsed(path)
    except (SyntaxError, ValueError):
        return [], set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imports, words, programs, opens = [], set(), set(), False
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            imports += [base, *(f"{base}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words |= {word for word in re.findall(r"[\w-][\w.-]*", node.value) if len(os.fsencode(word)) < 256}
            programs |= set(re.findall(r"\bimport (\w+)|\b(\w+)\.py\b", node.value))
        elif isinstance(node, ast.Name) and node.id == "__file__":
            opens = True
    # A program that is started in this folder imports its neighbours by their own names.
    imports += [f"{package}.{one}" for one in imports if "." not in one and _spec(one) is None]
    files: set[Path] = set()
    if opens:
        imports += [f"{package}.{word}" for pair in programs for word in pair if word]
        files = {file for word in words for file in _files(path.with_name(word)) if file.suffix != ".py"}
    return imports, files


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in (
            getattr(node.test, "id", ""),
            getattr(node.test, "attr", ""),
        ):
            yield from (part for other in node.orelse for part in (other, *_executed(other)))
        else:
            yield node
            yield from _executed(node)
