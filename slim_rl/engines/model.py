"""Checkpoints as models in this process."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from slim_rl.errors import UserError

disable_progress_bar()  # a checkpoint this small needs none; long work has bars of its own


def load_model(name: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal LM in fp32 with its tokenizer, from a folder or a hub name; on the GPU if there is one.

    In bf16 most of AdamW's steps at the learning rates of RL would be rounded away.

    Raises:
        UserError: there is no such checkpoint, or it has no tokenizer.
    """
    folder = Path(name)
    if folder.is_dir() and not any((folder / f).exists() for f in ("tokenizer.json", "vocab.json")):
        raise UserError(
            f"The checkpoint folder {folder} has no tokenizer (tokenizer.json); "
            "save the model's tokenizer into it with tokenizer.save_pretrained."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, attn_implementation="sdpa")
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{name} is not a checkpoint that can be loaded: {reason}") from error
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer
