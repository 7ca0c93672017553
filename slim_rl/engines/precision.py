"""What a model's products are computed in."""

import time
from functools import cache

import torch
from transformers import PreTrainedConfig, PreTrainedModel

_ROWS, _SECONDS = 2048, 0.1
_WORTH = 1.5
"""bf16 is taken where its products are faster by this factor: casts take time, too."""


def cast(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Give the weights another type. The model's buffers stay in fp32: positions in bf16 would turn by wrong angles."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)


def choose(precision: str, kind: PreTrainedConfig) -> tuple[torch.dtype, str]:
    """The type of a model that computes in `precision` on this machine, and a sentence that says why.

    Args:
        precision: `fp32`, `bf16`, or `auto`, which takes what is faster: on a GPU bf16 if its units have it; on a processor
            a tenth of a second of products says it.
        kind: the model's sizes.
    """
    if precision != "auto":
        return {"fp32": torch.float32, "bf16": torch.bfloat16}[precision], f"{precision}, as model.precision says"
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16, f"bf16, for {name} has it"
        return torch.float32, f"fp32, for {name} has no bf16"
    ratio = _product_seconds(torch.float32, kind.hidden_size) / _product_seconds(torch.bfloat16, kind.hidden_size)
    dtype, name = (torch.bfloat16, "bf16") if ratio >= _WORTH else (torch.float32, "fp32")
    return dtype, f"{name}, for a product in bf16 is {ratio:.1f} times as fast as in fp32 on this processor"


@cache
def _product_seconds(dtype: torch.dtype, size: int) -> float:
    """The least seconds of a product of such a model's sizes."""
    left, right = torch.ones(_ROWS, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    least, end = float("inf"), time.perf_counter() + _SECONDS / 2
    while time.perf_counter() < end or least == float("inf"):
        start = time.perf_counter()
        left @ right
        least = min(least, time.perf_counter() - start)
    return least
