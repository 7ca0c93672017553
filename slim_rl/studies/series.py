"""What an evaluation consists of: series of episodes, each by the same players."""

import atexit
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import AutoTokenizer

from slim_rl.config import Config
from slim_rl.engines.engine import Engine
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import load_model
from slim_rl.engines.sglang import SGLangEngine, serving
from slim_rl.games import game_kind
from slim_rl.players.chat_format import ChatFormat, qwen3_format
from slim_rl.rollout.table import Job, PlayerMaker, Table, policy_seat
from slim_rl.seating import check_context, make_table

if TYPE_CHECKING:
    from slim_rl.players.chat import ChatService

Makers = Mapping[str, Callable[[], PlayerMaker]]
"""Players by name, to be made when their turn comes: a checkpoint is loaded for its own series alone."""


@dataclass(frozen=True)
class Series:
    """Episodes of the same players on many games."""

    folder: Path
    make_table: Callable[[], Table]
    jobs: list[Job]


class Evaluation(NamedTuple):
    """What all series of an evaluation share."""

    config: Config
    folder: Path
    service: "ChatService | None"

    def series(
        self,
        name: str,
        games: Sequence[dict[str, Any]],
        seating: tuple[str, ...],
        makers: Makers | None = None,
        config: Config | None = None,
    ) -> Series:
        """The series `name` (two parts, with a slash): `seating` on each of `games`.

        Args:
            makers: of the players that the game's kind does not know.
            config: other parameters than the run's.
        """
        jobs = [Job(f"{name}/{game['game_id']}", game, seating) for game in games]
        table = partial(_table, config or self.config, seating, makers or {}, self.service)
        return Series(self.folder / name, table, jobs)


def _table(config: Config, names: Sequence[str], makers: Makers, service: "ChatService | None") -> Table:
    return make_table(
        config, game_kind(config), names, {name: make() for name, make in makers.items()}, service
    )


class Policy(NamedTuple):
    """What the seats of a checkpoint are made of."""

    engine: Engine
    chat_format: ChatFormat
    turn_tokens: int
    temperature: float

    def seat(self) -> PlayerMaker:
        return policy_seat(*self)


def policy(config: Config, checkpoint: Path, games: Sequence[dict[str, Any]]) -> Policy:
    """The checkpoint, loaded; in `evaluate.server` if there is one."""
    engine: Engine
    if config.evaluate.server is None:
        model, tokenizer = load_model(checkpoint)
        engine = LocalEngine(model)  # one for each series, for several may be played at once
    else:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        engine = SGLangEngine(_served(config.evaluate.server, checkpoint), config.model.context_tokens)
    chat_format = qwen3_format(tokenizer, config.model.thinking)
    check_context(engine.max_context_tokens, chat_format, games, config, game_kind(config))
    return Policy(engine, chat_format, config.model.turn_tokens, config.evaluate.temperature)


_servers = ExitStack()
atexit.register(_servers.close)


@lru_cache(maxsize=1)
def _served(command: str, checkpoint: Path) -> str:
    """The address of a server for `checkpoint`; the one for another checkpoint makes room for it."""
    _servers.close()
    return _servers.enter_context(serving(command, checkpoint))
