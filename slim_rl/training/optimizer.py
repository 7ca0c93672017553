"""Muon for the matrices, AdamW for the rest; and what both trainers do with their optimizers."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from slim_rl.core.errors import Diverged
from slim_rl.engines.model import overflow_hint
from slim_rl.runtime.heap import return_freed_memory
from slim_rl.runtime.team import ALONE, Team
from slim_rl.training.weights import Weights

_LARGE = 10**7
"""Weights of a model that is worth a fused step, and whose passes leave holes in the heap that count. A smaller one
would ask for the same pages again."""


class Muon(torch.optim.Muon):
    """Muon that makes its steps orthogonal in the precision of the weights.

    torch's does it in bfloat16, as its source for GPUs does (github.com/KellerJordan/Muon). On a processor without
    units for bfloat16 that takes 20 times as long as in fp32, and most of a step of a tiny model. It takes no closure.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                momentum = self.state[weights].setdefault("momentum_buffer", torch.zeros_like(weights))
                momentum.lerp_(weights.grad, 1 - group["momentum"])
                step = _orthogonal(weights.grad.lerp(momentum, group["momentum"]), group)
                weights.mul_(1 - group["lr"] * group["weight_decay"])
                weights.add_(step, alpha=-group["lr"] * 0.2 * max(weights.shape) ** 0.5)


def _orthogonal(matrix: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
    """`matrix` with all singular values near 1, by Newton and Schulz's iteration."""
    a, b, c = group["ns_coefficients"]
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


def muon_and_adamw(
    weights: Weights, learning_rate: float, weight_decay: float, betas: tuple[float, float]
) -> list[torch.optim.Optimizer]:
    """Muon (Jordan 2024, kellerjordan.github.io/posts/muon) for the layers' matrices; AdamW with `betas` for
    embeddings, the head and norms. Muon's steps are scaled to the size of AdamW's (0.2 times the root of the larger side:
    Liu et al. 2025, arXiv 2502.16982, section 2.2), so one learning rate serves both."""
    matrices = [w for name, w in weights.trained.items() if ".layers." in name and w.ndim == 2]
    rest = [w for name, w in weights.trained.items() if ".layers." not in name or w.ndim != 2]
    muon = Muon(matrices, lr=learning_rate, weight_decay=weight_decay)
    if not rest:  # adapters are matrices of layers
        return [muon]
    return [muon, torch.optim.AdamW(rest, lr=learning_rate, weight_decay=weight_decay, betas=betas)]


def adamw(
    weights: Weights, learning_rate: float, weight_decay: float, betas: tuple[float, float]
) -> list[torch.optim.Optimizer]:
    """AdamW for all that is trained. On a processor a fused step takes a seventh of the time (SmolLM2: .06 s, not .43 s)."""
    fused = weights.model.num_parameters() > _LARGE or None
    return [
        torch.optim.AdamW(
            weights.trained.values(), lr=learning_rate, weight_decay=weight_decay, betas=betas, fused=fused
        )
    ]


def set_learning_rate(optimizers: Sequence[torch.optim.Optimizer], learning_rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


def descend(
    weights: Weights, optimizers: Sequence[torch.optim.Optimizer], max_grad_norm: float, team: Team = ALONE
) -> float:
    """A step of each optimizer with the team's gradient, clipped to `max_grad_norm`; returns its norm before that.

    Raises:
        Diverged: the norm is not finite, and no weight has changed; or a weight is not, after the step.
    """
    trained = list(weights.trained.values())
    team.add_gradients(trained)
    norm = float(torch.nn.utils.clip_grad_norm_(trained, max_grad_norm))
    if not math.isfinite(norm):
        raise Diverged(f"the gradient's norm is {norm}{overflow_hint(weights.model)}")
    for optimizer in optimizers:
        optimizer.step()
    if not all(bool(weight.isfinite().all()) for weight in trained):
        raise Diverged("a weight is no finite number")
    weights.follow()
    if weights.model.num_parameters() > _LARGE:
        return_freed_memory()
    return norm


def restore(state: dict[str, Any], weights: Weights, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Load `state["weights"]` and the state dicts `state["optimizers"]`."""
    weights.load(state["weights"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
