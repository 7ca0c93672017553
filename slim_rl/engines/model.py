"""Loads checkpoints."""

from importlib.util import find_spec
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
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

_GGUF_NEEDS = {"gguf": "gguf==0.19.0", "accelerate": "accelerate==1.15.0"}


def checkpoint_folder(name: str, weights: bool = True) -> Path:
    """The folder of a checkpoint, given by its path or hub name; downloaded if need be, with or without its weights.

    Raises:
        UserError: there is no such checkpoint, or it has no tokenizer.
    """
    folder = Path(name)
    if not folder.is_dir():
        try:
            kinds = ["*.json", "*.txt", "*.jinja", *["*.safetensors"] * weights]
            folder = Path(snapshot_download(name, allow_patterns=kinds))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{name} is neither a folder nor a checkpoint on the hub: {reason}") from error
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
    try:
        return AutoConfig.from_pretrained(folder, **({"gguf_file": file.name} if is_gguf else {}))
    except Exception as error:  # what a broken GGUF file raises, no library says
        raise UserError(f"{name} is not a checkpoint that can be loaded: {_reason(error)}") from error


def load_model(name: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal LM in fp32 with its tokenizer, from a folder or a hub name; on the GPU if there is one.

    In bf16, rounding would lose most of AdamW's steps at the learning rates of RL.

    Raises:
        UserError: there is no such checkpoint, or it has no tokenizer.
    """
    folder = checkpoint_folder(str(name))
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{name} is not a checkpoint that can be loaded: {_reason(error)}") from error
    _check_weights(model, name)
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer  # type: ignore[arg-type]


def load_gguf(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal LM of a GGUF file, dequantised to fp32, with its tokenizer; on the CPU.

    Raises:
        UserError: there is no such file, it cannot be read, or a package for it is not installed.
    """
    _check_gguf(file)
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except Exception as error:  # what a broken file raises, no library says
        raise UserError(f"{file} is not a GGUF file that can be loaded: {_reason(error)}") from error
    _check_weights(model, file)
    # The weights are plain numbers now, but as long as these are there, transformers refuses to save them.
    model.hf_quantizer = None  # type: ignore[assignment]
    model.is_quantized = False  # type: ignore[assignment]
    del model.config.quantization_config
    return model, tokenizer


def _check_weights(model: PreTrainedModel, name: str | Path) -> None:
    for part, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise UserError(f"The checkpoint {name} is damaged: its weight {part} has numbers that are not finite.")


def _check_gguf(file: Path) -> None:
    if missing := [needed for package, needed in _GGUF_NEEDS.items() if find_spec(package) is None]:
        raise UserError(f"{file} is a GGUF file, which needs other packages: pip install {' '.join(missing)}.")
    if not file.is_file():
        raise UserError(f"There is no file {file}.")


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
