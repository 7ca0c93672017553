"""Checkpoints: the state that an interrupted run resumes from, and Hugging Face checkpoint folders."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from slim_rl.core.errors import UserError
from slim_rl.runtime.files import write_whole


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write a training state of tensors and plain values; it replaces the one before by rename.

    Raises:
        UserError: the disk is full.
    """

    def write(part: Path) -> None:
        try:
            with part.open("wb") as file:
                torch.save(state, file)
        except RuntimeError as error:  # torch hides that the disk is full
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None

    write_whole(path, write)


def load_state(path: Path) -> dict[str, Any] | None:
    """What `save_state` wrote; None if there is nothing. Only tensors and plain values are read, no code."""
    return torch.load(path, weights_only=True) if path.exists() else None


def save_model(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
    """Write a Hugging Face checkpoint folder; it appears by rename. Raises UserError on a full disk."""

    def write(part: Path) -> None:
        model.save_pretrained(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)

    _appear(folder, write)


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
