"""Loads checkpoints, in the precision that this machine computes in."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from slim_rl.core.errors import UserError

disable_progress_bar()  # our own long work has bars of its own

_PLAIN: dict[str, Any] = {"trust_remote_code": False}
"""A checkpoint that brings code of its own is refused; without this, transformers asks at the terminal."""
_ROWS, _SECONDS = 2048, 0.1
_WORTH = 1.5
"""bf16 is taken where its products are faster by this factor: casts take time, too."""
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_REASON = 400
"""Characters of a library's reason that a sentence repeats."""
_GGUF_NEEDS = {"gguf": "gguf==0.19.0", "accelerate": "accelerate==1.15.0"}


def checkpoint_folder(name: str, weights: bool = True) -> Path:
    """The folder of a checkpoint, given by its path or hub name; downloaded if need be, with or without its weights.

    Raises:
        UserError: there is no such checkpoint, the hub does not let this user have it, or it has no tokenizer.
    """
    folder = Path(name)
    if not folder.is_dir():
        try:
            kinds = ["*.json", "*.txt", "*.jinja", "README.md", *["*.safetensors"] * weights]
            folder = Path(snapshot_download(name, allow_patterns=kinds))
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:_REASON].rstrip(" .")
            raise UserError(
                f"{name} is neither a folder nor a checkpoint that can be downloaded from the hub: {reason}."
            ) from error
    if not any((folder / f).exists() for f in ("tokenizer.json", "vocab.json")):
        raise UserError(
            f"The checkpoint folder {folder} has no tokenizer (tokenizer.json); "
            "save the model's tokenizer into it with tokenizer.save_pretrained."
        )
    return folder


def checkpoint_config(name: str) -> PreTrainedConfig:
    """The architecture and sizes of a checkpoint or GGUF file, without its weights.

    Raises:
        UserError: as `load_model` and `load_gguf`.
    """
    file = Path(name)
    if is_gguf := file.suffix == ".gguf":
        _check_gguf(file)
    folder = file.parent if is_gguf else checkpoint_folder(name, weights=False)
    with opening(name):
        kind = AutoConfig.from_pretrained(folder, **_PLAIN, **({"gguf_file": file.name} if is_gguf else {}))
    if not is_gguf and (quantised := getattr(kind, "quantization_config", None)):
        named = quantised.get("quant_method") if isinstance(quantised, dict) else None
        raise UserError(
            f"{name} is quantised{f' ({named})' * bool(named)} and cannot be trained; take the plain checkpoint."
        )
    return kind


def load_tokenizer(folder: Path | str) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint folder. Raises UserError: it cannot be read."""
    with opening(folder):
        return AutoTokenizer.from_pretrained(folder, **_PLAIN)  # type: ignore[no-any-return]


def check_weights(folder: Path) -> None:
    """Raises UserError: a file of weights is damaged, or there is none; only their headers are read."""
    files = sorted(folder.glob("*.safetensors"))
    with opening(folder):
        for index in folder.glob("*.safetensors.index.json"):
            files += [folder / name for name in json.loads(index.read_text())["weight_map"].values()]
        for file in dict.fromkeys(files):
            with safe_open(file, "pt"):
                pass
    if not files and not list(folder.glob("pytorch_model*.bin")):
        raise UserError(f"The checkpoint folder {folder} has no weights (*.safetensors).")


def load_model(name: str | Path, precision: str = "fp32") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal LM with its tokenizer, from a folder or a hub name; on the GPU if there is one.

    Args:
        precision: see `choose`. What is to be trained is loaded in fp32: in bf16, rounding would lose most of AdamW's steps
            at the learning rates of RL.

    Raises:
        UserError: there is no such checkpoint, or it has no tokenizer.
    """
    folder = checkpoint_folder(str(name))
    checkpoint_config(str(folder))
    tokenizer = load_tokenizer(folder)
    check_weights(folder)
    options: dict[str, Any] = {
        "attn_implementation": "sdpa",
        "ignore_mismatched_sizes": True,
        "output_loading_info": True,
    }
    with opening(name):
        both: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options, **_PLAIN)
    model, loaded = both
    # transformers warns, and draws what is missing at random.
    beyond = [key for key in loaded["unexpected_keys"] if ".layers." in key and not key.endswith("inv_freq")]
    if wrong := sorted([*loaded["missing_keys"], *beyond, *(key for key, *_ in loaded["mismatched_keys"])]):
        raise UserError(f"The weights of {name} are not those of its config.json; see {wrong[0]}.")
    _check_weights(model, name)
    dtype, _ = choose(precision, model.config)
    cast(model, dtype)
    return model.to(best_device()), tokenizer


def load_gguf(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal LM of a GGUF file, dequantised to fp32, with its tokenizer; on the GPU if there is one.

    Raises:
        UserError: there is no such file, it cannot be read, or a package for it is not installed.
    """
    _check_gguf(file)
    with opening(file, "a GGUF file"):
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    _check_weights(model, file)
    # The weights are plain numbers now, but as long as these are there, transformers refuses to save them.
    model.hf_quantizer = None  # type: ignore[assignment]
    model.is_quantized = False  # type: ignore[assignment]
    del model.config.quantization_config
    return torch.nn.Module.to(model, best_device()), tokenizer  # type: ignore[return-value]


def best_device() -> str:
    """Where models compute: on the GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _check_weights(model: PreTrainedModel, name: str | Path) -> None:
    for part, numbers in [*model.named_parameters(), *model.named_buffers()]:  # buffers are made from config.json
        if not numbers.isfinite().all():
            raise UserError(f"The checkpoint {name} is damaged: {part} has numbers that are not finite.")


def _check_gguf(file: Path) -> None:
    if missing := [needed for package, needed in _GGUF_NEEDS.items() if find_spec(package) is None]:
        raise UserError(f"{file} is a GGUF file, which needs other packages: pip install {' '.join(missing)}.")
    if not file.is_file():
        raise UserError(f"There is no file {file}.")


@contextmanager
def opening(name: str | Path, kind: str = "a checkpoint") -> Iterator[None]:
    """Around libraries that open a user's file. They do not say what they raise; it may be a bare Exception, whose message
    repeats the file."""
    try:
        yield
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        reason = first if isinstance(error, OSError | ValueError) else f"{type(error).__name__} {first}"
        raise UserError(f"{name} is not {kind} that can be loaded: {reason[:_REASON].rstrip(' .')}.") from error


def cast(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Give the weights another type. The model's buffers stay in fp32: positions in bf16 would turn by wrong angles."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)


def choose(precision: str, kind: PreTrainedConfig) -> tuple[torch.dtype, str]:
    """The type of a model that computes in `precision` on this machine, and a sentence that says why.

    Args:
        precision: `fp32`, `bf16`, `fp16`, or `auto`, which takes what is faster: on a GPU bf16 if its units have it, else
            fp16; on a processor a tenth of a second of products says it.
        kind: the model's sizes.
    """
    if precision != "auto":
        return _TYPES[precision], f"{precision}, as model.precision says"
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16, f"bf16, for {name} has it"
        return torch.float16, f"fp16, for {name} has no bf16"
    ratio = _product_seconds(torch.float32, kind.hidden_size) / _product_seconds(torch.bfloat16, kind.hidden_size)
    dtype, name = (torch.bfloat16, "bf16") if ratio >= _WORTH else (torch.float32, "fp32")
    return dtype, f"{name}, for a product in bf16 is {ratio:.1f} times as fast as in fp32 on this processor"


def overflow_hint(model: PreTrainedModel) -> str:
    """What else numbers that are not finite may mean."""
    return " (if it overflows in fp16, take model.precision fp32)" if model.dtype == torch.float16 else ""


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
