"""What a log says of a set of episodes."""

from collections.abc import Sequence
from math import comb

import numpy as np

from slim_rl.core.episode import Episode
from slim_rl.core.game import base_seat


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Probability that at least one of k samples passes, without bias from `samples` of which `passed` did
    (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    return 1 - comb(samples - passed, k) / comb(samples, k)


def describe(episodes: Sequence[Episode]) -> dict[str, float]:
    """Means over the episodes that ended; empty without any.

    `reward` of the policy, `truncated`, `sampled_tokens`; `unrewarded`, the number of episodes that ended without a
    reward, if there are any; and for each game `env/NAME/reward`, `env/NAME/episodes` and every metric that the game
    reports, `env/NAME/METRIC`.
    """
    ended = [episode for episode in episodes if episode.rewards]
    if not ended:
        return {}
    means = {
        "reward": _reward(ended),
        "truncated": float(np.mean([e.status == "truncated" for e in ended])),
        "sampled_tokens": float(np.mean([sum(sum(t.loss_mask) for t in e.traces.values()) for e in ended])),
    }
    if unrewarded := sum(e.status in ("completed", "truncated") and not e.rewards for e in episodes):
        means["unrewarded"] = float(unrewarded)
    for game in dict.fromkeys(e.game for e in ended):
        played = [e for e in ended if e.game == game]
        means[f"env/{game}/episodes"] = float(len(played))
        means[f"env/{game}/reward"] = _reward(played)
        for name in dict.fromkeys(name for e in played for name in e.metrics):
            values = [e.metrics[name] for e in played if name in e.metrics]
            own = f"{name}.metric" if name in ("reward", "episodes") else name
            means[f"env/{game}/{own}"] = float(np.mean(values))
    return means


def _reward(episodes: Sequence[Episode]) -> float:
    # Sequences of one seat (`solver`, `solver#2`) have one reward, which counts once.
    return float(
        np.mean([e.rewards[seat] for e in episodes for seat in dict.fromkeys(map(base_seat, e.traces or e.rewards))])
    )
