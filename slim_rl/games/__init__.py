"""The games. Each folder here is a kind of game, and this is the only way to it."""

import json
import pkgutil
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from slim_rl.config import Config
from slim_rl.errors import UserError
from slim_rl.files import write_whole
from slim_rl.games.game import GameKind


def game_kind(config: Config) -> GameKind:
    """The kind of game that `config.game` names.

    Raises:
        UserError: there is none of this name.
    """
    folder, _, variant = config.game.partition(":")
    kinds = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    if folder not in kinds:
        raise UserError(f"There is no game {folder!r}; game must be one of {', '.join(kinds)}.")
    return import_module(f"{__name__}.{folder}").kind(config, variant)


def write_games(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """A games file, Parquet or JSONL by the ending of `path`; it appears by rename."""
    if path.suffix == ".parquet":
        table = pa.Table.from_pylist(list(lines))
        write_whole(path, lambda part: pq.write_table(table, part))
    else:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))


def read_games(path: Path, kind: GameKind) -> list[dict[str, Any]]:
    """All lines of a games file, checked.

    Raises:
        UserError: the file is missing or empty, or a line is damaged; the sentence names file and line.
    """
    if not path.exists():
        raise UserError(f"There is no games file {path}; `dvc repro games` makes it.")
    games: dict[str, dict] = {}
    parquet = path.suffix == ".parquet"
    for number, read in enumerate(_rows(path) if parquet else path.read_bytes().splitlines(), start=1):
        try:
            line = read if parquet else json.loads(read)
            kind.load(line)
            if not isinstance(line["prompt"], str):
                raise ValueError("its prompt is not text")
            if line["game_id"] in games:
                raise ValueError(f"the game {line['game_id']} stands in the file already")
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
            raise UserError(f"{path}, line {number} is not a game: {reason}.".replace("..", ".")) from None
        games[line["game_id"]] = line
    if not games:
        raise UserError(f"The games file {path} is empty; at least one game is needed.")
    return list(games.values())


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}.") from None
