"""Muon for the matrices, AdamW for the rest; and what both trainers do with their optimizers."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel


def muon_and_adamw(
    model: PreTrainedModel, learning_rate: float, weight_decay: float, betas: tuple[float, float]
) -> list[torch.optim.Optimizer]:
    """Muon (Jordan 2024, kellerjordan.github.io/posts/muon) for the layers' matrices; AdamW with `betas` for
    embeddings, the head and norms. Muon's steps are scaled to the size of AdamW's (Liu et al. 2025, arXiv
    2502.16982, section 2.2), so one learning rate serves both."""
    matrices = [p for p in model.get_decoder().layers.parameters() if p.ndim == 2]
    chosen = set(map(id, matrices))
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=learning_rate, weight_decay=weight_decay, betas=betas),
    ]


def set_learning_rate(optimizers: Sequence[torch.optim.Optimizer], learning_rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


def restore(state: dict[str, Any], model: PreTrainedModel, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Load the state dicts `state["model"]` and `state["optimizers"]`."""
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
