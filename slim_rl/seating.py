"""Who can sit at a game's table, as the parameters say."""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slim_rl.config import Config
from slim_rl.engines.engine import Engine
from slim_rl.errors import UserError
from slim_rl.files import write_whole
from slim_rl.games.game import Game, GameKind
from slim_rl.players.chat_format import ChatFormat, qwen3_format
from slim_rl.players.player import Player
from slim_rl.rollout.table import Job, PlayerMaker, Table, policy_seat

if TYPE_CHECKING:  # a scripted partner does not need the libraries of one behind an API
    from slim_rl.players.chat import ChatService

LEDGER, BILL, CACHE = "partner.jsonl", "partner.json", Path(".work/partner-cache")


def make_table(
    config: Config,
    kind: GameKind,
    names: Iterable[str],
    policies: Mapping[str, PlayerMaker],
    service: "ChatService | None" = None,
) -> Table:
    """A table at which each of `names` can be seated.

    Args:
        policies: the players that are models in an engine, by name. Whoever is not among them is `chat`,
            `checkpoint:PATH`, or somebody that the game's kind knows by name.
        service: `partner_service(config, ...)`.
    """
    makers = dict(policies)
    for name in set(names) - set(policies):
        if name == "chat":
            service = service or partner_service(config)
            makers[name] = partial(_chat, kind, service)
        elif name.startswith("checkpoint:"):
            makers[name] = _checkpoint(config, name.removeprefix("checkpoint:"))
        else:
            makers[name] = partial(_scripted, kind, name)
    status, run = (service.status, service.run) if service else (None, asyncio.run)
    return Table(kind.name, kind.load, makers, config.seed, status, run)


def policy_makers(
    config: Config, engines: Mapping[str, Engine], chat_format: ChatFormat, temperature: float
) -> dict[str, PlayerMaker]:
    """Models in the engines, by name; the one called `policy` is trained."""
    turn_tokens = config.model.turn_tokens
    return {
        name: policy_seat(engine, chat_format, turn_tokens, temperature, trained=name == "policy")
        for name, engine in engines.items()
    }


def _chat(kind: GameKind, service: "ChatService", game: Game, seat: str, job: Job, seed: int) -> Player:
    from slim_rl.players.chat import ChatPlayer

    rules = kind.chat_rules(seat)
    return rules.around(ChatPlayer(service, rules.system, rules.mend, seed))


def _scripted(kind: GameKind, name: str, game: Game, seat: str, job: Job, seed: int) -> Player:
    try:
        return kind.player(name, game, seat, seed)
    except ValueError as error:
        raise UserError(str(error)) from None


@cache
def _checkpoint(config: Config, path: str) -> PlayerMaker:
    from slim_rl.engines.local import LocalEngine
    from slim_rl.engines.model import checkpoint_folder, load_model

    model, tokenizer = load_model(checkpoint_folder(path))
    chat_format = qwen3_format(tokenizer, config.model.thinking)
    engine = LocalEngine(model)
    return policy_seat(engine, chat_format, config.model.turn_tokens, config.train.temperature, trained=False)


@cache
def partner_service(config: Config, folder: Path | None = None) -> "ChatService | None":
    """What answers for a `chat` player, one for all tables of a process; None if nobody is one.

    Args:
        folder: of a stage's work; gets the ledger. None keeps it in memory.

    Raises:
        UserError: there is no key for it, or the price is not known and the cost is bounded.
    """
    if not config.needs_service:
        return None
    from slim_rl.players.chat import chat_service

    return chat_service(config.partner, folder and folder / LEDGER, CACHE)


def write_bill(folder: Path, service: "ChatService | None") -> None:
    """`folder/partner.json`: what the calls to a paid partner came to."""
    if service is not None:
        text = json.dumps(service.bill(), indent=2, sort_keys=True) + "\n"
        write_whole(folder / BILL, lambda part: part.write_text(text, encoding="utf-8"))


def check_context(
    max_context_tokens: int,
    chat_format: ChatFormat,
    games: Sequence[dict[str, Any]],
    config: Config,
    kind: GameKind,
) -> None:
    """Raises UserError if a game leaves the policy no room for a turn, what it hears next, and a last turn."""
    longest = max(games, key=lambda game: len(chat_format.opening(game["prompt"])))
    for seat in policy_seats(config, kind):
        shown = kind.demonstrate(longest, seat)
        prompt = len(chat_format.opening(shown.observations[0]))
        asking = 0
        if shown.turns:
            asking = len(chat_format.turn(shown.turns[0]) + chat_format.continuation(shown.observations[1]))
        last = shown.closings[min(1, len(shown.turns))] or shown.turns[-1]
        closing = len(chat_format.turn(last))
        if prompt + asking + closing > max_context_tokens:
            raise UserError(
                f"The game {longest['game_id']} is too long for the model: a prompt of {prompt} tokens, one turn "
                f"with what is heard next ({asking}) and a last turn ({closing}) do not fit its context of "
                f"{max_context_tokens} tokens; take a model with a longer one or a smaller game."
            )
        if closing > config.model.turn_tokens:
            raise UserError(
                f"model.turn_tokens is {config.model.turn_tokens}, but {last!r} has {closing} tokens in this "
                "model's tokenizer; allow at least as many."
            )


def policy_seats(config: Config, kind: GameKind) -> list[str]:
    """The seats that the policy takes in one game or another."""
    if len(config.players) != len(kind.seats):
        raise UserError(
            f"seating.players names {len(config.players)} players, but {kind.name} has the seats "
            f"{', '.join(kind.seats)}."
        )
    every = config.seating.alternate
    return [s for s, name in zip(kind.seats, config.players, strict=True) if every or name == "policy"]
