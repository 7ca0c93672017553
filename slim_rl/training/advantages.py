"""From rewards to advantages, by comparing the episodes of one group with each other."""

import torch


def group_advantages(rewards: torch.Tensor, groups: torch.Tensor, divide_by_std: bool) -> torch.Tensor:
    """GRPO's advantage: the reward less its group's mean, over its group's standard deviation.

    Shao et al. 2024, arXiv 2402.03300, section 4.1.2; without the division, Liu et al. 2025 (Dr. GRPO),
    arXiv 2503.20783.

    Args:
        rewards: (episodes,) float.
        groups: (episodes,) int64; episodes with the same number are compared.

    Returns:
        (episodes,) float.
    """
    _, index, sizes = torch.unique(groups, return_inverse=True, return_counts=True)

    def group_mean(values: torch.Tensor) -> torch.Tensor:
        sums = torch.zeros(len(sizes), dtype=values.dtype).index_add_(0, index, values)
        return (sums / sizes)[index]

    highest, lowest = (
        torch.zeros(len(sizes), dtype=rewards.dtype).scatter_reduce_(
            0, index, rewards, how, include_self=False
        )
        for how in ("amax", "amin")
    )
    # Where all earned the same the difference is 0, not what rounding makes of it.
    centred = (rewards - group_mean(rewards)).where((highest > lowest)[index], 0.0)
    if not divide_by_std:
        return centred
    # The sample's standard deviation (n - 1), as in SLIME and TRL.
    variance = group_mean(centred**2) * (sizes / (sizes - 1).clamp(min=1))[index]
    return centred / (variance.sqrt() + 1e-6)
