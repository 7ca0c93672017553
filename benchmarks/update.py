"""Speed of one GRPO update, beside TRL's trainer on the same sequences, in one run.

    python3.11 -m venv /tmp/trl && /tmp/trl/bin/pip install --constraint requirements.txt --editable .[gguf] trl==1.16.0
    /tmp/trl/bin/python -m benchmarks.update
    /tmp/trl/bin/python -m benchmarks.update --model SmolLM2-135M-Instruct.Q4_1.gguf --groups 1 --samples 8 --prompt 185

The sequences are made: in a group all begin with the same prompt; 2 to 7 turns follow, in which 12 tokens are sampled
and 20 heard. TRL trains in its own loop: only what it would generate is given. Before each of its steps ours takes the
same step from the same weights. Loss and gradient norm of the first step are compared, the others are measured.
"""

import asyncio
import copy
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PrinterCallback, TrainerCallback

from slim_rl.core.episode import TokenTrace
from slim_rl.engines.model import load_gguf, load_model
from slim_rl.runtime.cli import argument_parser
from slim_rl.training.backend import make_optimizers
from slim_rl.training.config import TrainConfig
from slim_rl.training.update import TrainedSequence, update
from slim_rl.training.weights import Weights

SAMPLED, HEARD, TURNS = 12, 20, (2, 7)


def make_sequences(model: PreTrainedModel, groups: int, samples: int, prompt: int) -> list[TrainedSequence]:
    """With log-probs near those of `model`, so that some tokens are clipped."""
    torch.manual_seed(0)
    vocabulary, made = model.config.vocab_size, []
    for _ in range(groups):
        start = torch.randint(vocabulary, (prompt,)).tolist()
        for _ in range(samples):
            turns = int(torch.randint(TURNS[0], TURNS[1] + 1, ()))
            mask = [0] * prompt + ([1] * SAMPLED + [0] * HEARD) * turns
            mask = mask[:-HEARD]
            ids = start + torch.randint(vocabulary, (len(mask) - prompt,)).tolist()
            with torch.inference_mode():
                logprobs = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
            old = logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0] + 0.2 * torch.randn(len(ids) - 1)
            trace = TokenTrace(ids, mask, [0.0, *(old * torch.tensor(mask[1:])).tolist()])
            made.append(TrainedSequence(trace, float(torch.randn(())), len(made)))
    return made


def batch_for_trl(sequences: list[TrainedSequence], prompt: int) -> dict[str, torch.Tensor]:
    """What `GRPOTrainer._generate_and_score_completions` returns. All prompts have the same length."""

    def padded(part: str) -> torch.Tensor:
        return pad_sequence([torch.tensor(getattr(s.trace, part)[prompt:]) for s in sequences], batch_first=True)

    lengths = torch.tensor([len(s.trace.token_ids) - prompt for s in sequences])
    sampled = padded("loss_mask")
    return {
        "prompt_ids": (prompts := torch.tensor([s.trace.token_ids[:prompt] for s in sequences])),
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": padded("token_ids"),
        "completion_mask": (torch.arange(sampled.shape[1]) < lengths[:, None]).long(),
        "tool_mask": sampled,
        "advantages": torch.tensor([s.advantage for s in sequences]),
        "old_per_token_logps": padded("logprobs"),
        "num_items_in_batch": sampled.sum(),
    }


def clocks() -> np.ndarray:
    """Seconds of the wall and of this process on all cores; the second means more beside other work."""
    return np.array([time.perf_counter(), time.process_time()])


class Ours(TrainerCallback):
    """Takes our step before each of the trainer's, and measures both."""

    def __init__(self, model: PreTrainedModel, sequences: list[TrainedSequence], dtype: torch.dtype):
        self.config = TrainConfig(average_over="tokens", learning_rate=1e-6, max_logprob_gap=100)
        self.weights, self.sequences = Weights(copy.deepcopy(model), dtype), sequences
        self.optimizers = make_optimizers(self.config, self.weights)
        self.seconds, self.peer_seconds, self.metrics = [], [], []

    def on_step_begin(self, *_, **__):
        start = clocks()
        self.metrics.append(asyncio.run(update(self.config, self.weights, self.optimizers, self.sequences)))
        self.started = clocks()
        self.seconds.append(self.started - start)

    def on_step_end(self, *_, **__):
        self.peer_seconds.append(clocks() - self.started)


def beside_trl(model, tokenizer, sequences, batch, rows: int, steps: int, settings: dict) -> tuple[Ours, dict]:
    """Our measurements, and what TRL logged of its first step."""
    try:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer
    except ImportError as error:
        raise SystemExit(f"{error}: TRL is needed, in an environment of its own; see --help.") from error

    class Given(GRPOTrainer):
        def _generate_and_score_completions(self, _):
            return dict(batch)

    ours, count = Ours(model, sequences, torch.bfloat16 if settings.get("bf16") else torch.float32), len(sequences)
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            folder, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, logging_steps=1,
            max_steps=steps, learning_rate=1e-6, lr_scheduler_type="constant", num_generations=count,
            per_device_train_batch_size=rows, gradient_accumulation_steps=count // rows, **settings,
        )  # fmt: skip
        prompts = Dataset.from_dict({"prompt": ["x"] * count})
        trainer = Given(copy.deepcopy(model), lambda completions, **_: [0.0] * len(completions), args, prompts,
                        processing_class=tokenizer, callbacks=[ours])  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return ours, trainer.state.log_history[0]


def gemm_flops(dtype: torch.dtype) -> float:
    """Operations a second, the best of ten products of 2048 x 2048."""
    matrix, seconds = torch.randn(2048, 2048, dtype=dtype), []
    for _ in range(10):
        start = clocks()
        matrix @ matrix
        seconds.append(clocks()[0] - start[0])
    return 2 * 2048**3 / min(seconds)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/base"), help="a checkpoint folder or GGUF file")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--samples", type=int, default=16, help="sequences of a group")
    parser.add_argument("--prompt", type=int, default=25, help="tokens")
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 8, 16], help="of TRL's micro-batches, each tried")
    parser.add_argument("--steps", type=int, default=3, help="measured, after a first one (default: 3)")
    parser.add_argument("--bf16", action="store_true", help="products in bf16, TRL's by autocast")
    parser.add_argument("--defaults", action="store_true", help="TRL's own defaults, too: bf16 and checkpointing; slow")
    options = parser.parse_args()
    torch.set_num_threads(2)
    model, tokenizer = (load_gguf if options.model.suffix == ".gguf" else load_model)(options.model)
    sequences = make_sequences(model, options.groups, options.samples, options.prompt)
    batch = batch_for_trl(sequences, options.prompt)
    tokens, padded = sum(len(s.trace.token_ids) for s in sequences), batch["prompt_ids"].numel()
    padded += batch["completion_ids"].numel()
    flops = 6 * sum(p.numel() for p in model.get_decoder().layers.parameters()) * tokens
    peak = gemm_flops(torch.bfloat16 if options.bf16 else torch.float32)
    print(f"{len(sequences)} sequences, {tokens} tokens; TRL pads to {padded}")
    print(f"2048^3 product: {peak / 1e9:.0f} GFLOP/s", flush=True)
    alike = {"bf16": options.bf16, "gradient_checkpointing": False}
    runs = [(f"TRL, {rows} rows", rows, alike) for rows in options.rows]
    for name, rows, settings in runs + [("TRL's defaults, 8 rows", 8, {})] * options.defaults:
        ours, first = beside_trl(model, tokenizer, sequences, batch, rows, options.steps + 1, settings)
        print(f"{name}: loss {first['loss']:.6f}, gradient norm {first['grad_norm']:.6f}; "
              f"ours {ours.metrics[0]['loss']:.6f}, {ours.metrics[0]['grad_norm']:.6f}")  # fmt: skip
        mine, peers = (np.median(seconds[1:], axis=0) for seconds in (ours.seconds, ours.peer_seconds))
        for who, (wall, cpu) in (("ours", mine), (name, peers)):
            print(
                f"    {who:24} {wall:7.2f} s {cpu:7.2f} CPU s {tokens / wall:7.0f} tokens/s {flops / wall / peak:6.1%} of peak"
            )
        print(f"    ratio {peers[0] / mine[0]:.2f}, of CPU seconds {peers[1] / mine[1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
