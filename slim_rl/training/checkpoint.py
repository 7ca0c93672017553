"""What an interrupted run goes on from, and the checkpoint folders that come out at the end."""

import hashlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from slim_rl.errors import UserError
from slim_rl.rollout.store import write_whole

_PACKAGE = Path(__file__).parents[1]
_CODE = (
    "engines",
    "games",
    "intervention.py",
    "players",
    "rollout",
    "seating.py",
    "training",
)  # makes episodes and weights

disable_progress_bar()  # a checkpoint this small needs none; long work has bars of its own


def work_folder(root: Path, *inputs: Any) -> Path:
    """A folder for a stage's work that belongs to these inputs, and to this code, alone.

    It stays when the work is done: an interruption at any moment, also before DVC has seen the outputs,
    finds everything there. Folders below `root` that belong to other inputs are removed.

    Args:
        inputs: JSON values; a path stands for the names and contents of all files below it.
    """
    digest = hashlib.sha256()
    for value in (*inputs, *(_PACKAGE / part for part in _CODE)):
        if isinstance(value, Path):
            for file in sorted(p for p in [value, *value.rglob("*")] if p.is_file() and p.suffix != ".pyc"):
                digest.update(str(file.relative_to(value)).encode() + b"\0" + file.read_bytes())
        else:
            digest.update(json.dumps(value, sort_keys=True).encode())
    folder = root / digest.hexdigest()[:16]
    for other in root.glob("*") if root.exists() else []:
        if other != folder:
            shutil.rmtree(other)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write a training state; it replaces the one before by rename. Raises UserError on a full disk."""
    # Through memory, because torch tells of a full disk by an error of its own.
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_whole(path, lambda part: part.write_bytes(buffer.getbuffer()))


def load_state(path: Path) -> dict[str, Any] | None:
    return torch.load(path, weights_only=False) if path.exists() else None


def save_model(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a Hugging Face checkpoint folder; it appears by rename. Raises UserError on a full disk."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise UserError(f"The checkpoint {folder} could not be written: {error}.") from error
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)


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
