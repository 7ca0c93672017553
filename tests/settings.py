"""Games of any kind, and a small language for each."""

from functools import cache
from typing import NamedTuple

from transformers import PreTrainedTokenizerFast

from slim_rl.config import Config
from slim_rl.games import game_kind
from slim_rl.games.game import GameKind
from slim_rl.players.chat_format import ChatFormat, qwen3_format
from slim_rl.training.tokenizer import chat_corpus, phrase_tokenizer


class Setting(NamedTuple):
    """What a table is made of."""

    config: Config
    kind: GameKind
    lines: list[dict]
    tokenizer: PreTrainedTokenizerFast
    chat_format: ChatFormat


@cache
def setting(game, players=("policy", "policy"), alternate=False) -> Setting:
    config = Config.model_validate(
        {
            "game": game,
            "seating": {"players": players, "alternate": alternate},
            "games": {"max_turns": 8},
            "train": {"snapshot_every": 1, "pool_size": 2},
            "model": {"turn_tokens": 16, "context_tokens": 1500},
        }
    )
    kind = game_kind(config)
    lines = list(kind.games("train", 8))
    shown = [kind.demonstrate(line, seat) for line in lines for seat in kind.seats]
    tokenizer = phrase_tokenizer(chat_corpus(shown), kind.words)
    return Setting(config, kind, lines, tokenizer, qwen3_format(tokenizer, thinking=False))
