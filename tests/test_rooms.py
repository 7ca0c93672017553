"""No game is named outside its folder and the studies. The order of the rooms is import-linter's: `make lint`."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GAMES = sorted(path.parent.name for path in (ROOT / "slim_rl/games").glob("*/__init__.py"))
TEXTS = sorted(
    path
    for folder in ("slim_rl", "stages", "flows")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".j2", ".js", ".css", ".yaml")
    and not re.match(r"slim_rl/(games|studies)/\w+/", str(path.relative_to(ROOT)))
)
READ = {path: path.read_text() for path in TEXTS}
ENGLISH = {"agent", "matching", "execution", "prediction", "openreward"}
"""Names that are words too, or a company's: they count where they are quoted or imported."""


@pytest.mark.parametrize("game", GAMES)
def test_no_game_is_named_outside_its_folder(game):
    assert {"matching", "textarena", "tictactoe", "kuhn"} <= set(GAMES) and len(TEXTS) > 50
    quoted = rf"[\"'`](games\.)?{game}\b[\"'`:./]|games[./]{game}\b"
    named = re.compile(quoted if game in ENGLISH else rf"{game}|{quoted}", re.IGNORECASE)
    found = {str(path.relative_to(ROOT)): named.findall(text) for path, text in READ.items()}
    assert {path: names for path, names in found.items() if names} == {}
    assert {str(path) for path in TEXTS if path.suffix == ".py" and game in imported(path)} == set()


@cache
def imported(path: Path) -> set[str]:
    """The parts of all names that a module imports."""
    names = []
    for node in ast.walk(ast.parse(READ[path])):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names += [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
    return {part for name in names for part in name.split(".")}
