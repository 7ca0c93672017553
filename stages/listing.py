"""List the games, the profiles of conf/, or the parameters with their defaults."""

import ast
from collections.abc import Iterator
from inspect import getsource
from pathlib import Path
from textwrap import dedent
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slim_rl.config import Config
from slim_rl.runtime.cli import argument_parser, told_in_a_sentence
from slim_rl.runtime.imports import folders_in, module_of


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=("games", "profiles", "params"))
    what = parser.parse_args().what
    with told_in_a_sentence():
        rows = list({"games": _games, "profiles": _profiles, "params": _params}[what]())
        width = max(len(name) for name, _ in rows)
        for name, about in rows:
            print(f"{name:{width}}  {about}")


def _games() -> Iterator[tuple[str, str]]:
    for name in folders_in("slim_rl.games"):
        module = module_of("slim_rl.games", "game", name)
        yield name + (":NAME" if getattr(module, "VARIANTS", False) else ""), _first_line(module.__doc__)


def _profiles() -> Iterator[tuple[str, str]]:
    for path in sorted(Path("conf").glob("*.yaml")):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        yield path.stem, first.removeprefix("#").strip()


def _params() -> Iterator[tuple[str, str]]:
    for name, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _section(f"{name}.", kind)
        else:
            yield f"{name} = {_default(field)}", _docs(Config).get(name, "")
    for game in folders_in("slim_rl.games"):
        yield from _section(f"games.{game}.", module_of("slim_rl.games", "game", game).Parameters)


def _section(prefix: str, section: type[BaseModel]) -> Iterator[tuple[str, str]]:
    docs: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if issubclass(base, BaseModel) and base.__module__.startswith("slim_rl"):
            docs |= _docs(base)
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _section(f"{prefix}{name}.", kind)
        else:
            yield f"{prefix}{name} = {_default(field)}", docs.get(name, "")


def _docs(section: type[BaseModel]) -> dict[str, str]:
    """What stands below each field in the source."""
    [node] = ast.parse(dedent(getsource(section))).body
    assert isinstance(node, ast.ClassDef)
    docs = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            docs[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return docs


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "(required)"
    value: Any = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return str(list(value) if isinstance(value, tuple | set | frozenset) else value)


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


if __name__ == "__main__":
    main()
