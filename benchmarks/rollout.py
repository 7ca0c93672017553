"""Speed of the local engine in a training step's episodes, beside two peers, in one run.

    python -m benchmarks.rollout                                       # needs models/trained and data/games (make repro)
    python -m benchmarks.rollout --model CHECKPOINT --prompt 185 --games 2 --samples 8 [--uneven]

The peers: the same engine without sessions, which computes the whole dialogue again each turn; and Hugging Face's
`generate`, all waiting dialogues in one batch, padded on the left. With `--prompt` no game is played: each dialogue has
two turns of 12 tokens, with `--uneven` four of 6 to 60, and 20 tokens of observation between them. The floor is the bare
forward passes of the first row, without a cache.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from slim_rl.config import load_config
from slim_rl.engines.engine import Sampling
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import cast, load_gguf, load_model
from slim_rl.games import load_games
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.collect import collect
from slim_rl.rollout.seating import PolicyRules, Request, Seating
from slim_rl.rollout.store import Store
from slim_rl.rollout.tasks import Mixture, TaskFile, tasks_path
from slim_rl.runtime.cli import argument_parser

HEARD = 20


class Recorded(LocalEngine):
    """Keeps the (rows, tokens) of every forward pass."""

    def __init__(self, model):
        super().__init__(model)
        self.shapes: list[tuple[int, int]] = []

    def forward(self, ids, starts, cache):
        self.shapes.append((len(ids), max(map(len, ids))))
        return super().forward(ids, starts, cache)


class WithoutSessions(LocalEngine):
    async def generate(self, input_ids, sampling):
        return await super().generate(input_ids, replace(sampling, session=None))


class HuggingFace(LocalEngine):
    """Batches are formed as in the local engine."""

    @torch.inference_mode()
    def sample(self, requests):
        width, sampling = max(len(r.input_ids) for r in requests), requests[0].sampling
        device = self.model.device
        ids = torch.tensor([[0] * (width - len(r.input_ids)) + list(r.input_ids) for r in requests], device=device)
        mask = (torch.arange(width) >= torch.tensor([[width - len(r.input_ids)] for r in requests])).long().to(device)
        new = max(r.sampling.max_new_tokens for r in requests)
        stops = list(sampling.stop_token_ids)
        ends = {"eos_token_id": stops} if stops else {"min_new_tokens": new}
        out = self.model.generate(
            ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=new, pad_token_id=0, **ends
        )[:, width:].tolist()
        for request, row in zip(requests, out, strict=True):
            row = row[: request.sampling.max_new_tokens]
            n = next((i + 1 for i, token in enumerate(row) if token in stops), len(row))
            request.tokens, request.logprobs, request.reason = row[:n], [0.0] * n, "stop"
        return requests


def from_games(options: argparse.Namespace, tokenizer) -> Callable[[LocalEngine], int]:
    config = load_config()
    games = load_games(config.games, config.seed)
    tasks = {name: TaskFile(tasks_path(Path("data/games"), game, "train"), game) for name, game in games.items()}
    mixture = Mixture(tasks, {name: game.parameters.weight for name, game in games.items()})
    rules = PolicyRules(Renderer(tokenizer, config.model.thinking), config.model.turn_tokens, 1.0)
    requests = [
        Request(f"{n}/{s}", game, task, games[game].parameters.seating)
        for n, (game, task) in ((n, mixture[n]) for n in range(options.games))
        for s in range(options.samples)
    ]

    def play(engine: LocalEngine) -> int:
        seating = Seating(games, {"policy": rules.maker(engine)}, config.seed)
        with tempfile.TemporaryDirectory() as folder:
            episodes = asyncio.run(collect(requests, seating.play, Store(Path(folder)), config.concurrency))
        return sum(sum(trace.loss_mask) for e in episodes for trace in e.traces.values())

    return play


def made_up(options: argparse.Namespace, vocabulary: int) -> Callable[[LocalEngine], int]:
    def tokens(seed: str, count: int) -> list[int]:
        return random.Random(seed).choices(range(vocabulary), k=count)

    async def dialogue(engine: LocalEngine, game: int, number: int) -> int:
        ids = tokens(f"game {game}", options.prompt)
        rng = random.Random(f"turns {game} {number}")
        lengths = [round(6 * 10 ** rng.random()) for _ in range(4)] if options.uneven else [12, 12]
        for turn, length in enumerate(lengths):
            ids += tokens(f"{game} {number} {turn}", HEARD) if turn else []
            sampling = Sampling(length, seed=number + 1000 * turn, session=f"{game}/{number}")
            ids += (await engine.generate(ids, sampling)).token_ids
        return sum(lengths)

    async def play(engine: LocalEngine) -> int:
        places = [(game, number) for game in range(options.games) for number in range(options.samples)]
        return sum(await asyncio.gather(*(dialogue(engine, *place) for place in places)))

    return lambda engine: asyncio.run(play(engine))


@torch.inference_mode()
def bare_passes(model, shapes: list[tuple[int, int]]) -> None:
    for rows, width in shapes:
        ids = torch.ones(rows, width, dtype=torch.long)
        model.lm_head(model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[:, -1])


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/trained"), help="a checkpoint folder or GGUF file")
    parser.add_argument("--games", type=int, default=8)
    parser.add_argument("--samples", type=int, default=16, help="dialogues of a game, which share its prompt")
    parser.add_argument("--prompt", type=int, help="tokens of a made-up prompt; without it games are played")
    parser.add_argument("--uneven", action="store_true", help="with --prompt: turns of 6 to 60 tokens")
    parser.add_argument("--bf16", action="store_true", help="all of them in bf16")
    parser.add_argument("--rounds", type=int, default=3, help="the table shows their median (default: 3)")
    options = parser.parse_args()
    torch.set_num_threads(2)
    model, tokenizer = (load_gguf if options.model.suffix == ".gguf" else load_model)(options.model)
    cast(model, torch.bfloat16 if options.bf16 else torch.float32)
    play = made_up(options, model.config.vocab_size) if options.prompt else from_games(options, tokenizer)
    engines = {
        "local engine": Recorded,
        "without sessions": WithoutSessions,
        "generate": HuggingFace,
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in (*engines, "floor")}
    sampled: dict[str, int] = {}
    for _ in range(options.rounds):
        for name, kind in engines.items():
            engine, start, cpu = kind(model), time.perf_counter(), time.process_time()
            sampled[name] = play(engine)
            seconds[name].append((time.perf_counter() - start, time.process_time() - cpu))
            if kind is Recorded:
                sampled["floor"], shapes = sampled[name], engine.shapes
        start, cpu = time.perf_counter(), time.process_time()
        bare_passes(model, shapes)
        seconds["floor"].append((time.perf_counter() - start, time.process_time() - cpu))
    print(f"{options.games * options.samples} dialogues, median of {options.rounds}")
    for name, measured in seconds.items():
        wall, cpu = map(statistics.median, zip(*measured, strict=True))
        print(f"{name:16} {wall:7.2f} s {cpu:7.2f} CPU s {sampled[name] / wall:7.0f} sampled tokens/s")


if __name__ == "__main__":
    main()
