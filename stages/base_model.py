"""Stage `base_model`: the checkpoint that training starts from."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoTokenizer

from slim_rl.config import Config, load_config
from slim_rl.engines.local import check_kind
from slim_rl.engines.model import checkpoint_folder
from slim_rl.errors import UserError, told_in_a_sentence
from slim_rl.games import game_kind
from slim_rl.games.game import Demonstration
from slim_rl.players.chat_format import qwen3_format
from slim_rl.seating import policy_seats
from slim_rl.training.checkpoint import copy_checkpoint, save_model, work_folder
from slim_rl.training.tokenizer import chat_corpus, phrase_tokenizer
from slim_rl.training.warmstart import Tree, encode_tree, imitate, tiny_qwen

OUTPUT = Path("models/base")
PARAMETERS = ("seed", "threads", "game", "seating", "board", "games", "textarena", "model", "warmstart")
TOKENIZER_GAMES = 512  # enough for every phrase to occur


def main() -> None:
    config = load_config()
    torch.set_num_threads(config.threads)
    if config.model.base == "tiny":
        make_tiny(config)
    else:
        folder = checkpoint_folder(config.model.base)
        qwen3_format(AutoTokenizer.from_pretrained(folder), config.model.thinking)
        if config.train.backend == "local":
            check_kind(AutoConfig.from_pretrained(folder))
        copy_checkpoint(folder, OUTPUT)


def make_tiny(config: Config) -> None:
    """A Qwen3 made from nothing that can play, by imitation of what the game's kind shows it."""
    warm, kind = config.warmstart, game_kind(config)
    games, seats = list(kind.games("demonstrations", warm.demonstrations)), policy_seats(config, kind)

    def shown(numbers: range, last_seat_alone: int = 0) -> list[Demonstration]:
        return [
            kind.demonstrate(games[n], seats[-1] if n < last_seat_alone else seats[n % len(seats)])
            for n in numbers
            if n < len(games)
        ]

    first = shown(range(TOKENIZER_GAMES))
    tokenizer = phrase_tokenizer(chat_corpus(first), kind.words)
    chat_format = qwen3_format(tokenizer, config.model.thinking)

    def encode(demonstration: Demonstration) -> Tree:
        return encode_tree(demonstration, chat_format, warm.stop_probability)

    longest = max(int(encode(d).positions.max()) + 1 for d in first)
    if longest > config.model.context_tokens:
        raise UserError(
            f"A game of {longest} tokens is too long for the tiny model, whose context is "
            f"{config.model.context_tokens} tokens; raise model.context_tokens or lower board.size."
        )

    def batch(step: int) -> list[Tree]:
        numbers = range(step * warm.batch, (step + 1) * warm.batch)
        return list(map(encode, shown(numbers, warm.last_seat_demonstrations)))

    made = config.model
    model = tiny_qwen(
        tokenizer, made.context_tokens, config.seed, made.layers, made.hidden_size, made.initializer_range
    )
    parameters = config.work_inputs(*PARAMETERS)
    imitate(warm, model, batch, work_folder(Path(".work/base_model"), parameters))
    save_model(OUTPUT, model, tokenizer)


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
