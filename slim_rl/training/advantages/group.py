"""GRPO: the reward compared with those of the same task and seat."""

from collections.abc import Sequence
from typing import Any

import torch

from slim_rl.training.advantages import Played
from slim_rl.training.config import TrainConfig


def estimate(played: Sequence[Played], config: TrainConfig, state: dict[str, Any]) -> list[float]:
    """See `slim_rl.training.advantages.Estimator`."""
    numbers: dict[tuple[int, str], int] = {}
    groups = [numbers.setdefault((group, seat), len(numbers)) for group, _, seat in played]
    rewards = [episode.rewards[seat] for _, episode, seat in played]
    return group_advantages(torch.tensor(rewards), torch.tensor(groups), config.divide_by_std).tolist()


def group_advantages(rewards: torch.Tensor, groups: torch.Tensor, divide_by_std: bool) -> torch.Tensor:
    """The reward minus its group's mean, divided by its group's standard deviation.

    Shao et al. 2024, arXiv 2402.03300, section 4.1.2; without the division, Liu et al. 2025 (Dr. GRPO),
    arXiv 2503.20783.

    Args:
        rewards: (sequences,) float.
        groups: (sequences,) int64; sequences with the same number are compared.

    Returns:
        (sequences,) float.
    """
    _, index, sizes = torch.unique(groups, return_inverse=True, return_counts=True)

    def group_mean(values: torch.Tensor) -> torch.Tensor:
        sums = torch.zeros(len(sizes), dtype=values.dtype).index_add_(0, index, values)
        return (sums / sizes)[index]

    highest, lowest = (
        torch.zeros(len(sizes), dtype=rewards.dtype).scatter_reduce_(0, index, rewards, how, include_self=False)
        for how in ("amax", "amin")
    )
    # Where all rewards are equal the advantage is exactly 0, without the rounding error of the mean.
    centred = (rewards - group_mean(rewards)).where((highest > lowest)[index], 0.0)
    if not divide_by_std:
        return centred
    # The sample's standard deviation (n - 1), as in SLIME and TRL.
    variance = group_mean(centred**2) * (sizes / (sizes - 1).clamp(min=1))[index]
    return centred / (variance.sqrt() + 1e-6)
