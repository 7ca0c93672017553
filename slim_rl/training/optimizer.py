"""Muon for the matrices, AdamW for the rest; and what both trainers do with their optimizers."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from slim_rl.core.errors import UserError


def muon_and_adamw(
    model: PreTrainedModel, learning_rate: float, weight_decay: float, betas: tuple[float, float]
) -> list[torch.optim.Optimizer]:
    """Muon (Jordan 2024, kellerjordan.github.io/posts/muon) for the layers' matrices; AdamW with `betas` for
    embeddings, the head and norms. Muon's steps are scaled to the size of AdamW's (Liu et al. 2025, arXiv
    2502.16982, section 2.2), so one learning rate serves both."""
    matrices = [p for p in model.get_decoder().layers.parameters() if p.ndim == 2 and p.requires_grad]
    chosen = set(map(id, matrices))
    rest = [p for p in model.parameters() if id(p) not in chosen and p.requires_grad]
    return [
        torch.optim.Muon(matrices, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=learning_rate, weight_decay=weight_decay, betas=betas),
    ]


def freeze_below(model: PreTrainedModel, layers: int) -> None:
    """Let only the last `layers` layers, and the norm after them, be trained. Embeddings and head stay as they are.

    Raises:
        UserError: the model has fewer layers.
    """
    decoder = model.get_decoder()
    if layers > len(decoder.layers):
        raise UserError(
            f"train.trained_layers is {layers}, but the model has {len(decoder.layers)} layers; null trains it whole."
        )
    model.requires_grad_(False)
    for module in (*decoder.layers[-layers:], decoder.norm):
        module.requires_grad_(True)


def trained_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The part of the model's state dict that training changes."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {name: tensor for name, tensor in model.state_dict().items() if name in trained}


def set_learning_rate(optimizers: Sequence[torch.optim.Optimizer], learning_rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


def restore(state: dict[str, Any], model: PreTrainedModel, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Load the state dicts `state["model"]`, which may be a part, and `state["optimizers"]`."""
    model.load_state_dict(state["model"], strict=False)
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
