"""What fits in memory: a model, and the tokens that a pass through it may have."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from slim_rl.core.errors import UserError
from slim_rl.engines.local import check_kind
from slim_rl.engines.model import best_device, opening
from slim_rl.training.config import TrainConfig

ACTIVATIONS_GIGABYTES = 1.25
"""For a forward and backward pass; larger ones are no faster on a processor. Fixed, because another number of tokens
changes the last digits of the weights."""
TAKEN_FOR_KEPT = 2.4
"""Bytes that a pass takes on a processor for each one of activations that it keeps, with its temporaries and what
malloc and oneDNN hold back. Measured with SmolLM2."""
MAX_TOKENS = 2048
"""On a processor more only adds padding: sequences of unlike lengths are in one pass."""
MAX_TOKENS_GPU = 16_384
CPU = torch.device("cpu")


def fitting_tokens(
    config: PreTrainedConfig,
    checkpointing: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    gigabytes: float = ACTIVATIONS_GIGABYTES,
) -> int:
    """Padded tokens whose activations need about `gigabytes`, at most `MAX_TOKENS`; on a GPU a quarter of its
    memory, at most `MAX_TOKENS_GPU`; at least 1.

    Counted on Llama and Qwen3 in transformers 5.23: a layer keeps 12 numbers for each hidden unit of a token and 4 for
    each unit of its MLP. The head works on 4 numbers for each entry of the vocabulary, for half of the tokens.

    Args:
        checkpointing: with gradient checkpointing a layer keeps its input, and one layer at a time all.
    """
    room, most = int(gigabytes * 1e9), MAX_TOKENS
    if device.type == "cuda":
        room, most = torch.cuda.get_device_properties(device).total_memory // 4, MAX_TOKENS_GPU
    return min(max(room // _bytes_per_token(config, checkpointing, dtype), 1), most)


def _bytes_per_token(config: PreTrainedConfig, checkpointing: bool, dtype: torch.dtype) -> int:
    layer, layers = 12 * config.hidden_size + 4 * config.intermediate_size, config.num_hidden_layers
    numbers = layers * config.hidden_size + layer if checkpointing else layers * layer
    return dtype.itemsize * numbers + 4 * 2 * config.vocab_size


def check_trainable(
    name: str,
    kind: PreTrainedConfig,
    config: TrainConfig | None = None,
    free: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Check, before its weights are read, that a model can be trained on this machine.

    A parameter takes 4 bytes (in bf16 2 more, in fp16 4), those of a frozen copy, 4 for its gradient, 8 for AdamW's
    moments (Muon: 4), and 8 for averages, which take the weights' place when they are evaluated; with LoRA its own and
    those of the copy that is sampled from. Activations come on top; the warm start's are as long as its demonstrations,
    and are not counted. Nor are keys and values of the rollout: nobody knows how long its dialogues will be.

    Args:
        name: of the model, for the sentence.
        config: of GRPO; None for the warm start of a checkpoint.
        free: bytes; None for `free_bytes()`.
        dtype: that the model computes in.

    Raises:
        UserError: the local engine does not know the model, its config.json has no sizes for one, or it needs more memory
            than is free.
    """
    check_kind(kind)
    train = config or TrainConfig()
    with opening(name), torch.device("meta"):  # sizes without weights
        parameters = sum(p.numel() for p in AutoModelForCausalLM.from_config(kind).parameters())
    width, checkpointing = dtype.itemsize, train.gradient_checkpointing
    trained = 4 + 4 + (4 if train.optimizer == "muon" else 8) + width * (width < 4)
    trained += 2 * (dtype == torch.float16)  # its gradient before it is known to be finite
    frozen = width * bool(train.kl_coefficient) + 8 * bool(train.averaging_decay)
    needed = parameters * (2 * width if train.lora else trained + frozen)
    if config:
        device = torch.device(best_device())
        tokens = train.microbatch_tokens or fitting_tokens(kind, checkpointing, dtype, device)
        kept = tokens * _bytes_per_token(kind, checkpointing, dtype)
        needed += kept * (TAKEN_FOR_KEPT if device.type == "cpu" else 1)
    free = free_bytes() if free is None else free
    if needed > free:
        raise UserError(
            f"To train {name}, which has {parameters / 1e6:,.0f} million parameters, takes about {needed / 1e9:.1f} GB of "
            f"memory, but {free / 1e9:.1f} GB are free. Take a smaller model, or "
            "fewer train.microbatch_tokens."
        )


def free_bytes(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that a model can still take: of the GPU if there is one, else of the machine and of the control groups
    (a container's, a Slurm job's) that this process is in. What a group uses already is not subtracted from its limit."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    return min([psutil.virtual_memory().available, *_limits(groups, root)])


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
