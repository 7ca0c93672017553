"""Muon for the matrices, AdamW for the rest."""

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
