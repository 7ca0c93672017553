"""List the games, the profiles of conf/, or the parameters with their defaults."""

import ast
import json
from collections.abc import Iterator
from inspect import getsource
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.core.parameters import GameParameters
from slim_rl.runtime.cli import argument_parser, told_in_a_sentence
from slim_rl.runtime.imports import folders_in, module_of
from slim_rl.studies import load_study

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=("games", "profiles", "params"))
    parser.add_argument("--markdown", action="store_true", help="of params: docs/parameters.md")
    arguments = parser.parse_args()
    what = arguments.what
    with told_in_a_sentence():
        if what == "params" and arguments.markdown:
            print("\n".join(_markdown()))
            return
        rows = list({"games": _games, "profiles": _profiles, "params": _params}[what]())
        width = min(40, max(len(name) for name, _ in rows))  # a long default has its meaning further right
        for name, about in rows:
            print(f"{name:{width}}  {about}")


def _games() -> Iterator[tuple[str, str]]:
    for name in folders_in("slim_rl.games"):
        module = module_of("slim_rl.games", "game", name)
        yield name + (":NAME" if getattr(module, "VARIANTS", False) else ""), _first_line(module.__doc__)


def _profiles() -> Iterator[tuple[str, str]]:
    paths = sorted(Path("conf").glob("*.yaml"))
    if not paths:
        raise UserError(f"{Path.cwd()} has no profiles in conf/; `slim-rl init FOLDER` makes a folder with some.")
    for path in paths:
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        yield path.stem, first[1:].strip() if first.startswith("#") else ""


def _params() -> Iterator[tuple[str, str]]:
    for name, default, allowed, about in _parameters():
        yield f"{name} = {default}", f"[{allowed}] {about}" if allowed else about


def _markdown() -> Iterator[str]:
    """The parameters as docs/parameters.md has them."""
    yield "# Parameters\n\nAll parameters of `params.yaml`, made by `slim-rl params --markdown`; a test keeps the page current."
    yield "`params.yaml` may also name a profile that lies below it (`profile: asking`), see [architecture](architecture.md)."
    sections: dict[str, list[str]] = {}
    for name, default, allowed, about in _parameters():
        head, *rest = name.split(".")
        section = "At the top" if not rest else f"{head}.{rest[0]}" if head in ("games", "studies") else head
        sections.setdefault(section, []).append(f"| `{name}` | `{default}` | {allowed} | {about} |")
    for section, rows in sections.items():
        yield f"\n## {section}\n\n| name | default | allowed | meaning |\n|---|---|---|---|"
        yield from rows


def _parameters() -> Iterator[tuple[str, str, str, str]]:
    """Name, default, allowed values and meaning of each parameter; for a game only what every game does not have."""
    yield from _section("", Config)
    shared = {row[:2] for row in _section("", GameParameters)}
    for game in folders_in("slim_rl.games"):
        for name, default, allowed, about in _section("", module_of("slim_rl.games", "game", game).Parameters):
            if (name, default) not in shared:
                yield f"games.{game}.{name}", default, allowed, about
    for study in folders_in("slim_rl.studies"):
        yield from _section(f"studies.{study}.", load_study(study, "parameters").Parameters)


def _section(prefix: str, section: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    docs: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if issubclass(base, BaseModel) and base.__module__.startswith("slim_rl"):
            docs |= _docs(base)
    for name, field in section.model_fields.items():
        inner = list(_models(field.annotation, f"{prefix}{name}."))
        if not any(model is field.annotation for _, model in inner):
            yield f"{prefix}{name}", _default(field), _allowed([field.annotation, *field.metadata]), docs.get(name, "")
        for path, model in inner:
            if model is not GameParameters or path == "games.NAME.":  # a benchmark has those of a game, too
                yield from _section(path, model)


def _models(kind: Any, prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections in the type of a field, with the names that lead to them."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield prefix, kind
    for part in get_args(kind):
        yield from _models(part, prefix + "NAME." * (get_origin(kind) is dict))


def _allowed(parts: list[Any]) -> str:
    """Choices and bounds in a type and its metadata."""
    allowed = []
    for part in parts:  # grows
        if get_origin(part) is Literal:
            allowed.append(", ".join(f"`{value}`" for value in get_args(part)))
        elif get_origin(part) is not dict:
            parts += [*get_args(part), *getattr(part, "metadata", ())]
        bounds = [(sign, getattr(part, name, None)) for name, sign in _BOUNDS.items()]
        allowed += [f"{sign} {bound}" for sign, bound in bounds if bound is not None]
    return ", ".join(dict.fromkeys(allowed))


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
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


if __name__ == "__main__":
    main()
