"""Who sits at the matching game's table, as the parameters say."""

from collections.abc import Sequence

from slim_rl.config import Config, MatchingConfig
from slim_rl.engines.engine import Engine
from slim_rl.errors import UserError
from slim_rl.games.matching import load_game
from slim_rl.games.matching.language import answer, question
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.rules import SEATS
from slim_rl.games.matching.scripted import reference_player, shy_partner
from slim_rl.players.chat_format import ChatFormat
from slim_rl.rollout.table import PlayerMaker, Table, policy_seat

AGENT, PARTNER = SEATS


def matching_table(config: Config, engine: Engine, chat_format: ChatFormat, temperature: float) -> Table:
    """The policy in the agent's seat."""
    return _table(config, policy_seat(engine, chat_format, config.model.turn_tokens, temperature))


def reference_table(config: Config, boards: MatchingConfig) -> Table:
    """The scripted player that each job names in the agent's seat; `boards` says how they were selected."""
    return _table(config, lambda game, seat, job, seed: reference_player(job.player, game, boards, seed))


def _table(config: Config, agent: PlayerMaker) -> Table:
    def partner(game, seat, job, seed):
        return shy_partner(game, seat, config.partner.always_accept)

    return Table(
        load_game=lambda line: load_game(line, config.games.max_turns),
        seats={AGENT: agent, PARTNER: partner},
        seed=config.seed,
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
