"""Which groups are worth training on. A filter looks at the episodes of one game and keeps them or not."""

from collections.abc import Callable, Sequence

import numpy as np

from slim_rl.core.episode import Episode

Group = Sequence[Episode]

MIN_REWARD = 0.1


def reward_varies(group: Group) -> bool:
    """A group in which each seat always earned the same has no advantage to learn from (DAPO,
    arXiv 2503.14476, 3.2)."""
    ended = [episode.rewards for episode in group if episode.rewards]
    return any(np.std([rewards[seat] for rewards in ended]) > 1e-6 for seat in (ended[0] if ended else ()))


def no_failed_episode(group: Group) -> bool:
    """What failed through somebody else's fault is nobody's mistake, and its group is not comparable."""
    return all(episode.status != "failed" for episode in group)


def any_success(group: Group) -> bool:
    """At least one episode came to an agreement."""
    return any(episode.status == "completed" for episode in group)


def min_reward(group: Group) -> bool:
    """Some episode earned at least `MIN_REWARD`; where all earn less there is nothing to imitate."""
    return any(reward >= MIN_REWARD for episode in group for reward in episode.rewards.values())


def reasonable_length(group: Group) -> bool:
    """At most half of the episodes ran into a limit of turns or tokens."""
    return sum(episode.status == "truncated" for episode in group) <= len(group) / 2


def responses_differ(group: Group) -> bool:
    """At least two episodes were said differently."""
    return len({tuple(turn.text for turn in episode.turns) for episode in group}) > 1


def quality_and_diversity(group: Group) -> bool:
    """Something good, said in different ways, and not all worth the same."""
    return min_reward(group) and responses_differ(group) and reward_varies(group)


FILTERS: dict[str, Callable[[Group], bool]] = {
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


def first_objection(group: Group, filters: Sequence[str]) -> str | None:
    """The name of the first of `filters` that drops the group; None if all keep it."""
    return next((name for name in filters if not FILTERS[name](group)), None)
