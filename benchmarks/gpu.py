"""What only a GPU shows: the speed of both halves of a step, memory, the gap, and steps of the matching game.

    python -m benchmarks.gpu                          # a model of Qwen3-0.6B's sizes, made here
    python -m benchmarks.gpu --model CHECKPOINT       # a folder, hub name or GGUF file
    python -m benchmarks.gpu --sizes 2 64 --steps 2 --games 1   # a small one, to try the script without a GPU

First made-up dialogues, in fp32 and bf16: turns of 40 tokens sampled in sessions, beside Hugging Face's `generate`; then an
update on what was sampled, with all weights and with adapters. Then the model imitates demonstrations of the matching game
and trains on its rewards, in bf16.
"""

import argparse
import asyncio
import copy
import gc
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.rollout import HuggingFace
from slim_rl.core.episode import TokenTrace
from slim_rl.engines.engine import Sampling
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import load_gguf, load_model
from slim_rl.games import load_games
from slim_rl.games.matching.parameters import Parameters
from slim_rl.players.config import ModelConfig
from slim_rl.players.renderer import renderer_of
from slim_rl.rollout.seating import PolicyRules, Seating
from slim_rl.rollout.tasks import Mixture
from slim_rl.runtime.cli import argument_parser
from slim_rl.training.backend import LocalBackend, make_optimizers
from slim_rl.training.config import LoraConfig, TrainConfig, WarmstartConfig
from slim_rl.training.demonstrations import Demonstrations, encode_tree
from slim_rl.training.grpo import Rollouts, Trainer
from slim_rl.training.imitation import imitate
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer
from slim_rl.training.update import TrainedSequence, update
from slim_rl.training.weights import Weights

PROMPT, TURN, HEARD, TURNS, SAMPLES = 180, 40, 30, 3, 8
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GAME = Parameters(
    size=2, p_agent=0.0, p_partner=1.0, patience=(1, 3), max_questions=3, max_turns=8, instructions="short"
)


def seconds(work) -> float:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def gigabytes() -> float:
    return torch.cuda.max_memory_allocated() / 1e9 if DEVICE.type == "cuda" else float("nan")


def of_sizes(layers: int, hidden: int, vocabulary: int) -> Qwen3ForCausalLM:
    """Random weights; with 28 and 1024 the sizes of Qwen3-0.6B."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128 or 1, head_dim=128,
        max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def rollout(engine: LocalEngine, dialogues: int) -> list[TokenTrace]:
    """Groups of `SAMPLES` dialogues, which share a prompt."""
    vocabulary = engine.model.config.vocab_size

    async def play(number: int) -> TokenTrace:
        torch.manual_seed(number // SAMPLES)
        ids = torch.randint(vocabulary, (PROMPT,)).tolist()
        trace = TokenTrace(ids, [0] * PROMPT, [0.0] * PROMPT)
        for turn in range(TURNS):
            made = await engine.generate(
                trace.token_ids, Sampling(TURN, seed=number + 1000 * turn, session=str(number))
            )
            heard = [number % vocabulary] * HEARD * (turn < TURNS - 1)
            trace.token_ids += made.token_ids + heard
            trace.loss_mask += [1] * TURN + [0] * len(heard)
            trace.logprobs += made.logprobs + [0.0] * len(heard)
        return trace

    async def all_of_them() -> list[TokenTrace]:
        return list(await asyncio.gather(*map(play, range(dialogues))))

    traces = asyncio.run(all_of_them())
    engine.reset()
    return traces


def speed(model, dtype: torch.dtype, dialogues: int, lora: LoraConfig | None, rounds: int, peer: bool) -> None:
    weights = Weights(model, dtype, lora)
    config = TrainConfig(learning_rate=1e-6, max_logprob_gap=100)
    if DEVICE.type == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
    engine, optimizers = LocalEngine(weights.sampler), make_optimizers(config, weights)
    traces = rollout(engine, dialogues)  # records the graphs
    sampled = dialogues * TURN * TURNS
    took = statistics.median(seconds(lambda: rollout(engine, dialogues)) for _ in range(rounds))
    line = f"rollout {sampled / took:7.0f} sampled tokens/s"
    if peer:
        peers = [seconds(lambda: rollout(HuggingFace(weights.sampler), dialogues)) for _ in range(rounds + 1)][1:]
        line += f" (generate {sampled / statistics.median(peers):.0f})"
    sequences = [TrainedSequence(trace, (-1.0) ** n, n) for n, trace in enumerate(traces)]
    tokens = sum(len(trace.token_ids) for trace in traces)

    def step():
        return asyncio.run(update(config, weights, optimizers, sequences))

    metrics = step()
    took = statistics.median(seconds(step) for _ in range(rounds))
    print(
        f"{str(dtype).removeprefix('torch.')}{', LoRA' if lora else ''}, {dialogues} dialogues: {line}; update "
        f"{tokens / took:7.0f} tokens/s; gap mean {metrics['logprob_gap_mean']:.2g}, 99 % {metrics['logprob_gap_p99']:.2g}, "
        f"largest {metrics['logprob_gap']:.2g}, clipped {metrics['clipped_fraction']:.1%}; {gigabytes():.1f} GB",
        flush=True,
    )


async def train(given, tokenizer, options: argparse.Namespace) -> None:
    games = load_games({"matching": GAME}, 0)
    shown = Demonstrations(games, options.demonstrations, 0)
    if given is None:
        tokenizer = small_tokenizer(chat_corpus(shown.alternating(512)), shown.words)
        given = of_sizes(*options.sizes, len(tokenizer))
    config = TrainConfig(
        steps=options.steps, games_per_step=options.games, samples_per_game=8, learning_rate=1e-5, average_over="tokens",
        filters=("no_failed_episode", "reward_varies"),
    )  # fmt: skip
    renderer = renderer_of(ModelConfig(), tokenizer)
    weights = Weights(given.to(DEVICE), torch.bfloat16)
    warm = WarmstartConfig(demonstrations=options.demonstrations, batch=16, learning_rate=3e-4, warmup_steps=20)

    def batch(step: int):
        return [encode_tree(shown[n], renderer, 0.55) for n in range(step * 16, step * 16 + 16)]

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        await imitate(warm, weights, batch, Path(folder, "warm"), held_out=())
        print(f"imitation: {options.demonstrations} demonstrations in {time.perf_counter() - start:.0f} s")
        engine = LocalEngine(weights.sampler)
        seating = Seating(games, {"policy": PolicyRules(renderer, 112, 1.0).maker(engine)}, 0)
        tasks = {"matching": list(games["matching"].taskset.tasks("train", 1024))}
        trainer = Trainer(
            config,
            LocalBackend(config, weights, engine),
            Rollouts(Mixture(tasks, {"matching": 1.0}), seating, 256),
            Path(folder),
        )
        start = time.perf_counter()

        def told(metrics):
            shown = ("reward", "question_count", "logprob_gap_mean", "logprob_gap_p99", "clipped_fraction")
            print({name: round(metrics[name], 4) for name in shown if name in metrics}, flush=True)

        await trainer.train(told)
        print(
            f"{options.steps} steps of {options.games * 8} episodes in {time.perf_counter() - start:.0f} s; {gigabytes():.1f} GB"
        )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", help="a checkpoint folder, hub name or GGUF file")
    parser.add_argument("--sizes", type=int, nargs=2, default=[28, 1024], help="layers and hidden size without --model")
    parser.add_argument("--dialogues", type=int, nargs="*", default=[32, 256])
    parser.add_argument("--demonstrations", type=int, default=3200)
    parser.add_argument("--steps", type=int, default=20, help="of training; 0 for none")
    parser.add_argument("--games", type=int, default=16, help="of a step, each played 8 times")
    parser.add_argument("--rounds", type=int, default=3, help="the table shows their median")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name() if DEVICE.type == 'cuda' else 'CPU'}, torch {torch.__version__}")
    loaded, tokenizer = None, None
    if options.model:
        loaded, tokenizer = (
            load_gguf(Path(options.model)) if options.model.endswith(".gguf") else load_model(options.model)
        )
    model = loaded or of_sizes(*options.sizes, 151_936 if options.sizes[1] > 500 else 1000)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million weights")
    for dialogues in options.dialogues:
        for dtype, lora in ((torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, LoraConfig())):
            own = copy.deepcopy(model).to(DEVICE)
            speed(own, dtype, dialogues, lora, options.rounds, dtype == torch.bfloat16 and lora is None)
            del own
    if options.steps:
        asyncio.run(train(loaded, tokenizer, options))


if __name__ == "__main__":
    main()
