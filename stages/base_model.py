"""Stage `base_model`: the checkpoint that training starts from."""

import asyncio
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.engines.model import (
    best_device,
    check_weights,
    checkpoint_config,
    checkpoint_folder,
    load_gguf,
    load_model,
    load_tokenizer,
)
from slim_rl.games import load_games
from slim_rl.players.renderer import renderer_of
from slim_rl.runtime.cli import run_stage
from slim_rl.runtime.files import write_text
from slim_rl.runtime.team import Team, run_as_team
from slim_rl.training.checkpoint import after_divergence, began_in, copy_checkpoint, save_model
from slim_rl.training.demonstrations import Demonstrations, Tree, encode_tree, hold_out
from slim_rl.training.imitation import imitate, peak_rate
from slim_rl.training.tiny import tiny_qwen
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer
from slim_rl.training.weights import Weights
from stages.dependencies import parameters_of_the_run, training_work
from stages.workspace import sole_stage

OUTPUT = Path("models/base")
HELD_OUT, APART = 64, 16  # demonstrations to measure on; neighbours have the same number of turns
TOKENIZER_GAMES = 512  # of each game; enough for every phrase to occur


@sole_stage()
def main() -> None:
    config = parameters_of_the_run()
    if config.model.base == "tiny":
        run_as_team(partial(make_tiny, config), config.cores)
        return
    if config.warmstart.checkpoint:
        asyncio.run(warm_start(config))
    else:
        copy_given(config)


def copy_given(config: Config) -> None:
    """Copy the checkpoint that `model.base` names. A GGUF file becomes a checkpoint."""
    if config.model.base.endswith(".gguf"):
        model, tokenizer = load_gguf(Path(config.model.base))
        renderer_of(config.model, tokenizer)
        save_model(OUTPUT, model, tokenizer)
    else:
        folder = checkpoint_folder(config.model.base)
        checkpoint_config(str(folder))
        renderer_of(config.model, load_tokenizer(folder))
        load_model(folder) if config.train.backend == "local" else check_weights(folder)
        copy_checkpoint(folder, OUTPUT)


async def warm_start(config: Config) -> None:
    """Let the checkpoint that `model.base` names imitate the games' demonstrations."""
    torch.set_num_threads(config.cores)
    made, warm = config.model, config.warmstart
    is_gguf = made.base.endswith(".gguf")
    source = Path(made.base) if is_gguf else checkpoint_folder(made.base)
    model, tokenizer = load_gguf(source) if is_gguf else load_model(source)
    renderer = renderer_of(made, tokenizer)
    games = load_games(config.games, config.seed)
    demonstrations = Demonstrations(games, warm.demonstrations + HELD_OUT * APART, warm.last_seat_demonstrations)
    held_out = [
        hold_out(demonstrations[n], renderer, warm.stop_probability)
        for n in range(warm.demonstrations, len(demonstrations), APART)
    ]
    longest = max(int(one.tree.positions.max()) + 1 for one in held_out)
    if longest > model.config.max_position_embeddings:
        raise UserError(
            f"A game of {longest} tokens is too long for {made.base}, whose context is "
            f"{model.config.max_position_embeddings} tokens. Make the game smaller."
        )

    # A model that can read needs no lessons, and is to be measured on all of them at any time.
    order = np.random.default_rng(config.seed).permutation(warm.demonstrations).tolist()

    def batch(step: int) -> list[Tree]:
        numbers = order[step * warm.batch : (step + 1) * warm.batch]
        return [encode_tree(demonstrations[n], renderer, warm.stop_probability) for n in numbers]

    work, key = training_work("base_model", config, source)
    async with after_divergence(work, key, peak_rate(warm, pretrained=True)):
        dtype, why = began_in(work, made.precision, model.config)
        print(f"Precision: {why}.")
        weights = Weights(model, dtype)
        measured = await imitate(warm, weights, batch, work, held_out)
    save_model(OUTPUT, weights.sampler, tokenizer)
    write_text(OUTPUT / "warmstart.csv", pd.DataFrame(measured).to_csv(index=False))


async def make_tiny(config: Config, team: Team) -> None:
    """A Qwen3 from scratch that can play, by imitation of the games' demonstrations."""
    torch.set_num_threads(config.cores // team.size)
    made, warm = config.model, config.warmstart
    games = load_games(config.games, config.seed)
    demonstrations = Demonstrations(games, warm.demonstrations, warm.last_seat_demonstrations)
    first = demonstrations.alternating(TOKENIZER_GAMES * len(games))  # evenly over all lessons
    tokenizer = small_tokenizer(chat_corpus(first), demonstrations.words)
    renderer = renderer_of(made, tokenizer)
    trees = [encode_tree(d, renderer, warm.stop_probability) for d in first]
    longest = max(int(tree.positions.max()) + 1 for tree in trees)
    if longest > made.context_tokens:
        raise UserError(
            f"A game of {longest} tokens is too long for the tiny model, whose context is {made.context_tokens} "
            "tokens. Raise model.context_tokens or make the game smaller."
        )

    def batch(step: int) -> list[Tree]:
        # Each process encodes its own part. Seats and games take turns in it, and neighbours have the same number of
        # turns, so parts are of about the same length.
        first, end = (step * warm.batch + warm.batch * rank // team.size for rank in (team.rank, team.rank + 1))
        return [
            encode_tree(demonstrations[n], renderer, warm.stop_probability)
            for n in range(first, min(end, len(demonstrations)))
        ]

    model = tiny_qwen(
        tokenizer, made.context_tokens, config.seed, made.layers, made.hidden_size, made.initializer_range
    )
    torch.nn.Module.to(model, best_device())
    work, key = training_work("base_model", config)
    async with after_divergence(work, key, peak_rate(warm, pretrained=False), team):
        await imitate(warm, Weights(model), batch, work, team=team)
    if team.leads:
        save_model(OUTPUT, model, tokenizer)


if __name__ == "__main__":
    run_stage(main, __doc__)
