"""Which groups are worth training on. A filter is a function that looks at a group of episodes of one task
and says whether to keep it."""

from collections.abc import Callable, Sequence

import numpy as np

from slim_rl.core.episode import Episode
from slim_rl.rollout.rewards import judged_seats
from slim_rl.runtime.imports import function_at

Group = Sequence[Episode]
Filter = Callable[[Group], bool]

MIN_REWARD = 0.1


def reward_varies(group: Group) -> bool:
    """Some seat of the policy did not earn the same in all episodes. Without that there is no advantage to learn from
    (DAPO, arXiv 2503.14476, section 3.2)."""
    earned: dict[str, list[float]] = {}
    for episode in group:
        for seat in judged_seats(episode) if episode.rewards else ():
            earned.setdefault(seat, []).append(episode.rewards[seat])
    return any(np.std(rewards) > 1e-6 for rewards in earned.values())


def no_failed_episode(group: Group) -> bool:
    """No episode failed. A group with a failed episode has fewer to compare, through no fault of the policy."""
    return all(episode.status != "failed" for episode in group)


def any_success(group: Group) -> bool:
    """At least one episode ended by the rules of the game."""
    return any(episode.status == "completed" for episode in group)


def min_reward(group: Group) -> bool:
    """Some seat earned at least `MIN_REWARD` in some episode."""
    return any(reward >= MIN_REWARD for episode in group for reward in episode.rewards.values())


def reasonable_length(group: Group) -> bool:
    """At most half of the episodes reached a limit of turns or tokens."""
    return sum(episode.status == "truncated" for episode in group) <= len(group) / 2


def responses_differ(group: Group) -> bool:
    """At least two episodes have different turns."""
    return len({tuple(turn.text for turn in episode.turns) for episode in group}) > 1


def quality_and_diversity(group: Group) -> bool:
    """`min_reward`, `responses_differ` and `reward_varies` together."""
    return min_reward(group) and responses_differ(group) and reward_varies(group)


FILTERS: dict[str, Filter] = {
    f.__name__: f
    for f in (
        reward_varies,
        no_failed_episode,
        any_success,
        min_reward,
        reasonable_length,
        responses_differ,
        quality_and_diversity,
    )
}


def find_filter(name: str) -> Filter:
    """A filter of this module by name, or any other by import path, `my_module:my_filter`.

    Raises:
        UserError: there is no such function.
    """
    return FILTERS.get(name) or function_at(name)


def first_objection(group: Group, filters: Sequence[str]) -> str | None:
    """The name of the first of `filters` that drops the group; None if all keep it."""
    return next((name for name in filters if not find_filter(name)(group)), None)
