"""Loads checkpoints."""

from importlib.util import find_spec
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from slim_rl.core.errors import UserError

disable_progress_bar()  # our own long work has bars of its own

_GGUF_NEEDS = {"gguf": "gguf==0.19.0", "accelerate": "accelerate==1.15.0"}


def checkpoint_folder(name: str) -> Path:
    """The folder of a checkpoint, given by its path or hub name; downloaded if need be.

    Raises:
        UserError: there is no such checkpoint, or it has no tokenizer.
    """
    folder = Path(name)
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"]))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{name} is neither a folder nor a checkpoint on the hub: {reason}") from error
    if not any((folder / f).exists() for f in ("tokenizer.json", "vocab.json")):
        raise UserError(
            f"The checkpoint folder {folder} has no tokenizer (tokenizer.json); "
            "save the model's tokenizer into it with tokenizer.save_pretrained."
        )
    return folder


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
        reason = str(error).splitlines()[0]
        raise UserError(f"{name} is not a checkpoint that can be loaded: {reason}") from error
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer  # type: ignore[arg-type]


def load_gguf(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal LM of a GGUF file, dequantised to fp32, with its tokenizer; on the CPU.

    Raises:
        UserError: there is no such file, it cannot be read, or a package for it is not installed.
    """
    if missing := [needed for package, needed in _GGUF_NEEDS.items() if find_spec(package) is None]:
        raise UserError(f"{file} is a GGUF file, which needs other packages: pip install {' '.join(missing)}.")
    if not file.is_file():
        raise UserError(f"There is no file {file}.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except Exception as error:  # what a broken file raises, no library says
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{file} is not a GGUF file that can be loaded: {reason}") from error
    # The weights are plain numbers now, but as long as these are there, transformers refuses to save them.
    model.hf_quantizer = None  # type: ignore[assignment]
    del model.config.quantization_config
    return model, tokenizer
