"""From rewards to advantages: by comparing the episodes of a group with each other, or with a moving baseline."""

from collections.abc import Iterable, MutableMapping, Sequence

import torch

from slim_rl.config import TrainConfig
from slim_rl.rollout.episode import Episode


def advantages(
    config: TrainConfig, played: Sequence[tuple[int, Episode, str]], baselines: MutableMapping[str, float]
) -> list[float]:
    """What each trained sequence did better than was to be expected.

    Args:
        played: of each sequence the number of its group, its episode, and the seat that it is of.
        baselines: of every kind of game and seat, for `role`; moved on in place.
    """
    rewards = [episode.rewards[seat] for _, episode, seat in played]
    if config.advantage == "return":
        return rewards
    if config.advantage == "role":
        roles = [f"{episode.kind}/{seat}" for _, episode, seat in played]
        return role_advantages(rewards, roles, baselines, config.role_baseline_decay)
    places: dict[tuple[int, str], int] = {}
    groups = [places.setdefault((group, seat), len(places)) for group, _, seat in played]
    values = group_advantages(torch.tensor(rewards), torch.tensor(groups), config.divide_by_std)
    return values.tolist()


def role_advantages(
    rewards: Iterable[float], roles: Iterable[str], baselines: MutableMapping[str, float], decay: float
) -> list[float]:
    """The return less a moving average of what that role has earned before.

    Role-conditioned advantage estimation (SPIRAL, Liu et al. 2025, arXiv 2506.24119, section 3.3): in a
    zero-sum game one seat may earn more than the other however well both play, which a common baseline would
    take for skill. As in the authors' code (github spiral-rl/spiral) a return is compared with the average
    before it is taken into it, and the average starts at 0.

    Args:
        roles: a kind of game and a seat for each reward.
        baselines: by role; updated in place.
        decay: how much of a baseline stays after one more return.
    """
    values = []
    for reward, role in zip(rewards, roles, strict=True):
        baseline = baselines.get(role, 0.0)
        values.append(reward - baseline)
        baselines[role] = decay * baseline + (1 - decay) * reward
    return values


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
