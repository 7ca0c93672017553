"""Who may know what: the rooms in which games are played and learnt do not know which game it is."""

import io
import pkgutil
import re
import tokenize
from pathlib import Path

import pytest

from slim_rl import games

PACKAGE = Path(games.__file__).parents[1]
NAMES = [module.name for module in pkgutil.iter_modules(games.__path__) if module.ispkg]


def code(path):
    """The tokens of a module but for comments and docstrings."""
    tokens, statement_begins = [], True
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        docstring = token.type == tokenize.STRING and statement_begins and token.string.startswith('"""')
        if token.type != tokenize.COMMENT and not docstring:
            tokens.append(token.string)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            statement_begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return " ".join(tokens)


@pytest.mark.parametrize("room", ["rollout", "training", "engines"])
def test_no_game_is_known_by_name(room):
    assert {"matching", "textarena", "tictactoe", "kuhn"} <= set(NAMES)
    paths = sorted((PACKAGE / room).rglob("*.py"))
    assert len(paths) > 3
    named = re.compile("|".join([*NAMES, r"player-\d"]), re.IGNORECASE)
    assert {path.name: found for path in paths if (found := named.findall(code(path)))} == {}
    imported = re.compile(r"import .*slim_rl ?\. ?games|slim_rl ?\. ?games ?\. ?(?!game\b)\w+")
    assert {path.name: found for path in paths if (found := imported.findall(code(path)))} == {}
