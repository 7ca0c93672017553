"""What fits in memory: a model, and the tokens that a pass through it may have."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from slim_rl.core.errors import UserError
from slim_rl.engines.local import check_kind
from slim_rl.training.config import TrainConfig
from slim_rl.training.optimizer import freeze_below

ACTIVATIONS_GIGABYTES = 3
"""Of a forward and backward pass. Fixed, because another number of tokens changes the last digits of the weights."""
MAX_TOKENS = 2048
"""More only adds padding: sequences of unlike lengths are in one pass."""
_FEW_TOKENS = 256
"""A short dialogue, of which a pass has one at least."""


def fitting_tokens(config: PreTrainedConfig, layers: int | None = None, checkpointing: bool = False) -> int:
    """Padded tokens whose activations in fp32 need about `ACTIVATIONS_GIGABYTES`; at most `MAX_TOKENS`, at least 1.

    Counted on Llama and Qwen3 in transformers 5.23: a layer keeps 12 numbers for each hidden unit of a token and 4 for
    each unit of its MLP. The head works on 4 numbers for each entry of the vocabulary, for half of the tokens.

    Args:
        layers: number of last layers that are trained; those below keep nothing. None for all.
        checkpointing: with gradient checkpointing a layer keeps its input, and one layer at a time all.
    """
    bytes_per_token = _bytes_per_token(config, layers, checkpointing)
    return min(max(int(ACTIVATIONS_GIGABYTES * 1e9) // bytes_per_token, 1), MAX_TOKENS)


def _bytes_per_token(config: PreTrainedConfig, layers: int | None, checkpointing: bool) -> int:
    layer, layers = 12 * config.hidden_size + 4 * config.intermediate_size, layers or config.num_hidden_layers
    kept = layers * config.hidden_size + layer if checkpointing else layers * layer
    return 4 * (kept + 2 * config.vocab_size)


def check_trainable(name: str, kind: PreTrainedConfig, config: TrainConfig | None = None, processes: int = 1) -> None:
    """Check, before its weights are read, that a model can be trained on this machine.

    A parameter takes 4 bytes, and 4 for each frozen copy. One that is trained takes 4 for its gradient and 8 for AdamW's
    moments (Muon: 4). Activations of `fitting_tokens` come on top; the warm start's are as long as its demonstrations, and
    are not counted.

    Args:
        name: of the model, for the sentence.
        config: of GRPO; None for the warm start of a checkpoint, which trains all weights.
        processes: that share the memory, each with a model of its own.

    Raises:
        UserError: the local engine does not know the model, or it needs more memory than is free.
    """
    check_kind(kind)
    train = config or TrainConfig()
    with torch.device("meta"):  # sizes without weights
        model = AutoModelForCausalLM.from_config(kind)
    parameters = sum(p.numel() for p in model.parameters())
    weights = 4 * parameters * (1 + bool(train.kl_coefficient) + bool(train.averaging_decay) + train.pool_size)

    def needed(layers: int | None) -> dict[str, int]:
        """Bytes."""
        if layers:
            freeze_below(model, layers)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        tokens = fitting_tokens(kind, layers, train.gradient_checkpointing)
        tokens = min(tokens, train.microbatch_tokens or tokens) if config else 0
        return {
            "weights": weights,
            "gradients and optimizer": trained * (8 if train.optimizer == "muon" else 12),
            "activations": tokens * _bytes_per_token(kind, layers, train.gradient_checkpointing),
        }

    free, need = free_bytes() // processes, needed(train.trained_layers)
    total, activations = sum(need.values()), need["activations"]
    if total <= free:
        return
    fewer = range((train.trained_layers or kind.num_hidden_layers + 1) - 1, 0, -1) if config else ()
    fitting = next((layers for layers in fewer if sum(needed(layers).values()) <= free), None)
    per_token = _bytes_per_token(kind, train.trained_layers, train.gradient_checkpointing)
    tokens = (free - total + activations) // per_token
    largest = parameters * (free - activations) / (total - activations) / 1e6
    if config and tokens >= _FEW_TOKENS:
        advice = f"train.microbatch_tokens: {tokens} would fit"
    elif fitting:
        advice = f"train.trained_layers: {fitting} would fit"
    elif largest > 1:
        advice = f"a model of at most {largest:,.0f} million parameters would fit"
    else:
        advice = "only a much smaller model would fit"
    parts = ", ".join(f"{part} {size / 1e9:.1f}" for part, size in need.items() if size)
    raise UserError(
        f"To train {name}, which has {parameters / 1e6:,.0f} million parameters, takes about {total / 1e9:.1f} GB of "
        f"memory ({parts}), but {free / 1e9:.1f} GB are free{f' for each of {processes} processes' * (processes > 1)}; "
        f"{advice}."
    )


def free_bytes() -> int:
    """Memory that a model can still take: of the GPU if there is one, else of the machine and of the control groups
    (a container's, a Slurm job's) that this process is in. What a group uses already is not subtracted from its limit."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    return min([psutil.virtual_memory().available, *_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _limits(groups: Path, root: Path) -> Iterator[int]:
    """Limits in bytes of these control groups and those around them, in version 1 or 2 of the interface."""
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, group = line.split(":", 2)
        if controllers in ("", "memory"):
            folder = root / controllers / group.removeprefix("/")
            for around in (folder, *folder.parents):
                for file in (around / "memory.max", around / "memory.limit_in_bytes"):
                    if file.exists() and (limit := file.read_text().strip()) != "max":
                        yield int(limit)
