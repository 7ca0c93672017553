"""Checkpoints: the state that an interrupted run resumes from, and Hugging Face checkpoint folders."""

import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from slim_rl.core.errors import Diverged, UserError
from slim_rl.engines.model import choose
from slim_rl.runtime.files import write_text, write_whole
from slim_rl.runtime.team import ALONE, Team

PRECISION = "precision.txt"
_DIVERGED = "diverged.txt"
_MORE_THAN_PAIRS = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "modules_to_save")
"""What PEFT's configuration calls adapters that are not W + B A alpha / rank everywhere."""


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
    """What `save_state` wrote, in main memory; None if there is nothing. Only tensors and plain values are read, no code."""
    return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None


@asynccontextmanager
async def after_divergence(folder: Path, key: str, learning_rate: float, team: Team = ALONE) -> AsyncIterator[None]:
    """Around a training in `folder`: it goes on from the last state of one of the same `key` that has diverged at a larger
    learning rate.

    Args:
        key: names the training whatever its learning rate.
    """
    if team.leads and not (folder / "state.pt").exists():
        for mark in folder.parent.glob(f"*/{_DIVERGED}"):
            other, _, rate = mark.read_text().partition(" ")
            if other == key and float(rate or 0) > learning_rate and mark.with_name("state.pt").exists():
                step = _move(mark.parent, folder)
                print(f"The training goes on from step {step}, which was trained at the learning rate {rate}.")
                break
    await team.lead(None)
    try:
        yield
    except Diverged:
        if team.leads:
            write_text(folder / _DIVERGED, f"{key} {learning_rate}")
        raise


def _move(source: Path, folder: Path) -> int:
    """Move the state of `source`, and what the steps up to it have played and written; returns its step. What later steps
    have written stays, and what `folder` has of these steps and later ones goes: both come from other weights."""
    state = load_state(source / "state.pt") or {}
    last: int = state.get("run", state)["step"]
    for path, step in _steps(folder):
        if step >= last or (source / path.relative_to(folder)).exists():  # else a killed process has moved it
            shutil.rmtree(path)
    for path, step in _steps(source):
        if step <= last:
            place = folder / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.rename(place)
    if (source / PRECISION).exists():
        (source / PRECISION).rename(folder / PRECISION)
    (source / "state.pt").rename(folder / "state.pt")
    return last


def _steps(folder: Path) -> list[tuple[Path, int]]:
    """The folders of single steps, with the step's number."""
    return [(path, int(path.name.removeprefix("step-"))) for path in sorted(folder.rglob("step-*"))]


def began_in(folder: Path, precision: str, kind: PreTrainedConfig) -> tuple[torch.dtype, str]:
    """As `choose`, for a training in `folder`. What `auto` took is kept there, so it computes as it began wherever it goes
    on."""
    kept = folder / PRECISION
    if precision == "auto" and kept.exists():
        name = kept.read_text()
        return choose(name, kind)[0], f"{name}, in which this training began"
    dtype, why = choose(precision, kind)
    write_text(kept, why.partition(",")[0])
    return dtype, why


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


def merge_adapter(base: Path, adapter: Path, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
    """Write the checkpoint `base` with a LoRA adapter added to its weights, W + B A alpha / rank, file by file.

    Args:
        adapter: a folder with PEFT's adapter_config.json and adapter_model.safetensors.

    Raises:
        UserError: it is none, or not one of this checkpoint.
    """
    try:
        (configured,), (stored,) = (list(adapter.rglob(f"adapter_{n}")) for n in ("config.json", "model.safetensors"))
        settings, matrices = json.loads(configured.read_text()), load_file(stored)
        scale = settings["lora_alpha"] / settings["r"]
        downs = {name for name in matrices if ".lora_A." in name}
        # Nothing that was trained is left out without a word.
        odd = [name for name in _MORE_THAN_PAIRS if settings.get(name)]
        odd += sorted(matrices.keys() - downs - {name.replace(".lora_A", ".lora_B") for name in downs})
        if odd:
            raise ValueError(f"{odd[0]} cannot be merged")
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        raise UserError(f"{adapter} has no LoRA adapter: {type(error).__name__} {error}.") from None
    names = {name.removeprefix("base_model.model.").replace(".lora_A", ""): name for name in downs}
    merged: set[str] = set()

    def write(part: Path) -> None:
        part.mkdir()
        for file in base.iterdir():
            if file.suffix != ".safetensors":
                shutil.copy(file, part) if file.is_file() else shutil.copytree(file, part / file.name)
                continue
            weights = load_file(file)
            for name in names.keys() & weights.keys():
                plain = weights[name]
                try:
                    down, up = matrices[names[name]], matrices[names[name].replace(".lora_A", ".lora_B")]
                    weights[name] = (plain.float() + scale * up.float() @ down.float()).to(plain.dtype)
                except (LookupError, RuntimeError) as error:
                    raise ValueError(f"the adapter of {name} does not fit: {error}") from None
                merged.add(name)
            save_file(weights, part / file.name, {"format": "pt"})
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        if missing := sorted(names.keys() - merged) or (not names and ["any layer"]):
            raise ValueError(f"the adapter of {missing[0]} fits no weight of {base}")

    _appear(folder, write)


def _appear(folder: Path, write: Callable[[Path], object]) -> None:
    part = folder.with_name(f".{folder.name}.part")
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(part, ignore_errors=True)
    try:
        write(part)
    except (OSError, ValueError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise UserError(f"The checkpoint {folder} could not be written: {error}.") from error
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)
