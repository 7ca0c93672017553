"""What an interrupted run goes on from, and the checkpoint folders that come out at the end."""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from slim_rl.errors import UserError
from slim_rl.files import write_whole

_PACKAGE = Path(__file__).parents[1]
_CODE = (
    "engines",
    "games",
    "players",
    "rollout",
    "seating.py",
    "training",
)  # makes episodes and weights


def work_folder(root: Path, *inputs: Any) -> Path:
    """A folder for a stage's work that belongs to these inputs, and to this code, alone.

    It stays when the work is done: an interruption at any moment, also before DVC has seen the outputs,
    finds everything there. Folders below `root` that belong to other inputs are removed.

    Args:
        inputs: JSON values; a path stands for the names and contents of all files below it.
    """
    folder = root / fingerprint(*inputs, *(_PACKAGE / part for part in _CODE))
    for other in root.glob("*") if root.exists() else []:
        if other != folder:
            shutil.rmtree(other)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fingerprint(*inputs: Any) -> str:
    """16 hexadecimal digits that belong to these inputs; see `work_folder`."""
    digest = hashlib.sha256()
    for value in inputs:
        if isinstance(value, Path):
            for file in sorted(p for p in [value, *value.rglob("*")] if p.is_file() and p.suffix != ".pyc"):
                digest.update(str(file.relative_to(value)).encode() + b"\0" + file.read_bytes())
        else:
            digest.update(json.dumps(value, sort_keys=True).encode())
    return digest.hexdigest()[:16]


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

    def write(part: Path) -> None:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)

    _appear(folder, write)


def save_weights(folder: Path, model: PreTrainedModel) -> None:
    """Write a checkpoint folder without a tokenizer; it appears by rename. Raises UserError on a full disk."""
    _appear(folder, model.save_pretrained)


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Copy a Hugging Face checkpoint folder; the copy appears by rename. Raises UserError on a full disk."""
    _appear(folder, lambda part: shutil.copytree(source, part))


def _appear(folder: Path, write: Callable[[Path], object]) -> None:
    part = folder.with_name(f".{folder.name}.part")
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(part, ignore_errors=True)
    try:
        write(part)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise UserError(f"The checkpoint {folder} could not be written: {error}.") from error
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)
