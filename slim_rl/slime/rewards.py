"""Rewards that judge a whole group, in SLIME's rollout."""

from collections.abc import Sequence
from typing import Any

from slime.utils.types import Sample

from slim_rl.core.game import Task
from slim_rl.rollout.rewards import JUDGED, judge, judged_seats
from slim_rl.slime.context import Context
from slim_rl.slime.samples import TASK, played


async def judge_group(args: Any, samples: Sequence[Sample | list[Sample]], **_: Any) -> list[float | None]:
    """The rewards of a group by `games.NAME.reward_function` (`--custom-rm-path` with `--group-rm`). Where it judges single
    episodes, they have their rewards already."""
    first = [sample[0] if isinstance(sample, list) else sample for sample in samples]
    group = [played(sample, number).episode for number, sample in enumerate(first)]
    games = Context.of(args).parameters.games
    reward = games[group[0].game].reward_function if group[0].game in games else None
    if reward is not None and reward.scope == "group":
        tasks = [Task(s.label or "", str(s.prompt), s.metadata[TASK]["state"]) for s in first]
        await judge(reward, group, tasks)
        for episode in group:
            episode.metrics[JUDGED] = 1.0
        for sample, episode in zip(first, group, strict=True):
            if episode.status == "failed":
                sample.status, sample.remove_sample = Sample.Status.FAILED, True
    return [
        sample.reward if not e.rewards else e.rewards[judged_seats(e)[0]]
        for sample, e in zip(first, group, strict=True)
    ]
