"""What a log says of a set of episodes."""

from collections.abc import Sequence

import numpy as np

from slim_rl.rollout.episode import Episode


def describe(episodes: Sequence[Episode]) -> dict[str, float]:
    """Means over the episodes that ended: reward of the policy, every fact of the game, tokens sampled; empty without any."""
    ended = [episode for episode in episodes if episode.rewards]
    if not ended:
        return {}
    means = {
        "reward": float(np.mean([e.rewards[seat] for e in ended for seat in e.traces or e.rewards])),
        "truncated": float(np.mean([e.status == "truncated" for e in ended])),
        "sampled_tokens": float(np.mean([sum(sum(t.loss_mask) for t in e.traces.values()) for e in ended])),
    }
    names = dict.fromkeys(name for e in ended for name in e.facts)
    return means | {name: float(np.mean([e.facts[name] for e in ended if name in e.facts])) for name in names}
