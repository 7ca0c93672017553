"""Role baselines: the reward compared with a moving average of what that seat earned before."""

from collections.abc import Sequence
from typing import Any

from slim_rl.training.advantages import Played
from slim_rl.training.config import TrainConfig

DECAY = 0.95
"""Decay of the moving average."""


def estimate(played: Sequence[Played], config: TrainConfig, state: dict[str, Any]) -> list[float]:
    """See `slim_rl.training.advantages.Estimator`. The state has the average of each game and seat.

    Role-conditioned advantage estimation (SPIRAL, Liu et al. 2025, arXiv 2506.24119, section 3.3): in a
    zero-sum game one seat may earn more than the other however well both play, and a common baseline would
    take that for skill. As in the authors' code (github spiral-rl/spiral), a reward is compared with the
    average before the average includes it, and the average starts at 0.
    """
    values = []
    for _, episode, seat in played:
        role, reward = f"{episode.game}/{seat}", episode.rewards[seat]
        baseline = state.get(role, 0.0)
        values.append(reward - baseline)
        state[role] = DECAY * baseline + (1 - DECAY) * reward
    return values
