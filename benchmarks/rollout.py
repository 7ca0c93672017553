"""Speed of the local engine in a training step's episodes, beside two peers, in one run.

    python -m benchmarks.rollout [--games 8] [--samples 16]

All play the same tasks with the same model. The peers: the same engine without sessions, which computes the
whole dialogue again each turn; and Hugging Face's `generate`, one dialogue after another (one sample per
task, because it is slow). Needs models/trained and data/games (make repro).
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from slim_rl.config import load_config
from slim_rl.engines.engine import Generation
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import load_model
from slim_rl.games import load_games
from slim_rl.players.renderer import renderer_for
from slim_rl.rollout.collect import collect
from slim_rl.rollout.seating import PolicyRules, Request, Seating
from slim_rl.rollout.tasks import Mixture, TaskFile, tasks_path


class WithoutSessions(LocalEngine):
    async def generate(self, input_ids, sampling):
        return await super().generate(input_ids, replace(sampling, session=None))


class PlainGenerate:
    def __init__(self, model):
        self.model, self.max_context_tokens = model, model.config.max_position_embeddings

    async def generate(self, input_ids, sampling):
        ids = torch.tensor([input_ids])
        torch.manual_seed(sampling.seed % 2**63)
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=list(sampling.stop_token_ids),
            top_k=0,
        )[0, ids.shape[1] :]
        return Generation(out.tolist(), [0.0] * len(out), "stop")

    def release(self, session):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=8)
    parser.add_argument("--samples", type=int, default=16)
    options = parser.parse_args()
    config = load_config()
    torch.set_num_threads(config.threads)
    model, tokenizer = load_model("models/trained")
    games = load_games(config.games, config.seed)
    tasks = {name: TaskFile(tasks_path(Path("data/games"), game, "train"), game) for name, game in games.items()}
    mixture = Mixture(tasks, {name: game.parameters.weight for name, game in games.items()})
    rules = PolicyRules(renderer_for(tokenizer, config.model.thinking), config.model.turn_tokens, 1.0)
    for name, engine, samples in (
        ("local engine", LocalEngine(model), options.samples),
        ("without sessions", WithoutSessions(model), options.samples),
        ("plain generate", PlainGenerate(model), 1),
    ):
        seating = Seating(games, {"policy": rules.maker(engine)}, config.seed)
        requests = [
            Request(f"{n}/{s}", game, task, games[game].parameters.seated(place))
            for n, (game, place, task) in ((n, mixture[n]) for n in range(options.games))
            for s in range(samples)
        ]
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            episodes = collect(requests, seating.play, Path(folder), config.concurrency)
            seconds = time.perf_counter() - start
        sampled = sum(sum(trace.loss_mask) for e in episodes for trace in e.traces.values())
        print(f"{name:16} {len(requests):4} episodes {seconds:6.2f} s {sampled / seconds:7.0f} sampled tokens/s")


if __name__ == "__main__":
    main()
