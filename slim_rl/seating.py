"""Who sits at the matching game's table, as the parameters say."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from slim_rl.config import Config, MatchingConfig
from slim_rl.engines.engine import Engine
from slim_rl.errors import UserError
from slim_rl.games.matching import load_game
from slim_rl.games.matching.language import answer, question
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.probe import MAX_TURNS, Prober
from slim_rl.games.matching.rules import SEATS
from slim_rl.games.matching.scripted import reference_player, shy_partner
from slim_rl.games.matching.shy import AlwaysAccepts, one_turn, shy_rules
from slim_rl.players.chat_format import ChatFormat
from slim_rl.rollout.store import write_whole
from slim_rl.rollout.table import PlayerMaker, Table, policy_seat

if TYPE_CHECKING:  # a scripted partner does not need the libraries of one behind an API
    from slim_rl.players.chat import ChatService

AGENT, PARTNER = SEATS
LEDGER, BILL, CACHE = "partner.jsonl", "partner.json", Path(".work/partner-cache")


def matching_table(
    config: Config,
    engine: Engine,
    chat_format: ChatFormat,
    temperature: float,
    service: "ChatService | None" = None,
) -> Table:
    """The policy in the agent's seat. `service` is `partner_service(config, ...)`."""
    return _table(config, policy_seat(engine, chat_format, config.model.turn_tokens, temperature), service)


def reference_table(config: Config, boards: MatchingConfig, service: "ChatService | None" = None) -> Table:
    """The scripted player that each job names in the agent's seat; `boards` says how they were selected."""

    def reference(game, seat, job, seed):
        return reference_player(job.player, game, boards, seed)

    return _table(config, reference, service)


def probe_table(config: Config, service: "ChatService | None" = None) -> Table:
    """Somebody in the agent's seat who finds out how shy the partner is."""

    def prober(game, seat, job, seed):
        return Prober(game, seat, seed)

    return replace(_table(config, prober, service), load_game=lambda line: load_game(line, MAX_TURNS))


@cache
def partner_service(config: Config, folder: Path | None = None) -> "ChatService | None":
    """What answers for a `chat` partner, one for all tables of a process; None for a scripted one.

    Args:
        folder: of a stage's work; gets the ledger. None keeps it in memory.

    Raises:
        UserError: there is no key for it, or the price is not known and the cost is bounded.
    """
    if config.partner.kind == "scripted":
        return None
    from slim_rl.players.chat import chat_service

    return chat_service(config.partner, folder and folder / LEDGER, CACHE)


def write_bill(folder: Path, service: "ChatService | None") -> None:
    """`folder/partner.json`: what the calls to a paid partner came to."""
    if service is not None:
        text = json.dumps(service.bill(), indent=2, sort_keys=True) + "\n"
        write_whole(folder / BILL, lambda part: part.write_text(text, encoding="utf-8"))


def _table(config: Config, agent: PlayerMaker, service: "ChatService | None") -> Table:
    always_accept = config.partner.always_accept
    service = service or partner_service(config)

    def partner(game, seat, job, seed):
        if service is None:
            return shy_partner(game, seat, always_accept)
        from slim_rl.players.chat import ChatPlayer

        player = ChatPlayer(service, shy_rules(always_accept), one_turn, seed)
        return AlwaysAccepts(player) if always_accept else player

    return Table(
        load_game=lambda line: load_game(line, config.games.max_turns),
        seats={AGENT: agent, PARTNER: partner},
        seed=config.seed,
        status=service and service.status,
        run=service.run if service else asyncio.run,
    )


def check_context(
    max_context_tokens: int, chat_format: ChatFormat, games: Sequence[dict], config: Config
) -> None:
    """Raises UserError if a game leaves the policy no room for a question, its answer and a proposal."""
    longest = max(games, key=lambda game: len(chat_format.opening(game["prompt"])))
    prompt = len(chat_format.opening(longest["prompt"]))
    asking = len(
        chat_format.turn(question(0, 0)) + chat_format.continuation(f"Partner: [message] {answer(0, 0, 99)}")
    )
    proposing = len(chat_format.turn("[propose] " + format_proposal(range(config.board.size))))
    if prompt + asking + proposing > max_context_tokens:
        raise UserError(
            f"The game {longest['game_id']} is too long for the model: a prompt of {prompt} tokens, one question "
            f"with its answer ({asking}) and a proposal ({proposing}) do not fit its context of "
            f"{max_context_tokens} tokens; take a model with a longer one or smaller boards."
        )
    if proposing > config.model.turn_tokens:
        raise UserError(
            f"model.turn_tokens is {config.model.turn_tokens}, but a proposal for {config.board.size} papers has "
            f"{proposing} tokens in this model's tokenizer; allow at least as many."
        )
