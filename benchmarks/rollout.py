"""How fast the local engine plays a step's episodes, beside two peers, in one run.

    python -m benchmarks.rollout [--games 8] [--samples 16]

The same games with the same model: by the same engine without sessions, which computes the whole dialogue
anew each turn; and by Hugging Face's `generate`, one dialogue after another (a sample of each game, because
it takes long). Needs models/trained and data/games (make repro).
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
from slim_rl.games import game_kind, read_games
from slim_rl.players.chat_format import qwen3_format
from slim_rl.rollout.collect import collect
from slim_rl.rollout.table import Job
from slim_rl.seating import make_table, policy_makers


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--games", type=int, default=8)
    parser.add_argument("--samples", type=int, default=16)
    options = parser.parse_args()
    config = load_config()
    torch.set_num_threads(config.threads)
    model, tokenizer = load_model("models/trained")
    kind = game_kind(config)
    games = read_games(Path("data/games/train.jsonl"), kind)
    for name, engine, samples in (
        ("local engine", LocalEngine(model), options.samples),
        ("without sessions", WithoutSessions(model), options.samples),
        ("plain generate", PlainGenerate(model), 1),
    ):
        chat_format = qwen3_format(tokenizer, config.model.thinking)
        policies = policy_makers(config, {"policy": engine}, chat_format, 1.0)
        table = make_table(config, kind, config.players, policies)
        jobs = [
            Job(f"{n}/{s}", games[n], config.players) for n in range(options.games) for s in range(samples)
        ]
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            episodes = collect(jobs, table.play, Path(folder), config.concurrency)
            seconds = time.perf_counter() - start
        sampled = sum(sum(trace.loss_mask) for e in episodes for trace in e.traces.values())
        print(f"{name:16} {len(jobs):4} episodes {seconds:6.2f} s {sampled / seconds:7.0f} sampled tokens/s")


if __name__ == "__main__":
    main()
