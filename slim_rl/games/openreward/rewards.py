"""The one reward of an episode from those that the environment gave, by the arithmetic of OpenReward's cookbook.

With one difference: an episode without any reward has none. The cookbook calls it 0.0, so that doing nothing beats
trying and earning less.
"""

from collections.abc import Callable, Sequence

from slim_rl.games.openreward.parameters import Parameters

_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "mean": lambda rewards: sum(rewards) / len(rewards),
    "max": max,
    "min": min,
}


def episode_reward(given: Sequence[float], finished: bool, parameters: Parameters) -> float | None:
    """The reward of an episode; None without any.

    Args:
        given: by the environment, in order.
        finished: whether the environment finished the episode.
    """
    rewards = list(given)
    if not finished and parameters.nonterminal_reward is not None:
        rewards.append(parameters.nonterminal_reward)
    if not rewards:
        return None
    reward = float(_REDUCTIONS[parameters.reward_reduction](rewards))
    if parameters.min_reward is not None:
        reward = max(reward, parameters.min_reward)
    if parameters.max_reward is not None:
        reward = min(reward, parameters.max_reward)
    return reward
