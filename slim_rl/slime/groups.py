"""What SLIME asks about a group of episodes: its rewards, whether to train on it, its advantages."""

from collections.abc import Sequence
from typing import Any

import torch
from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.utils.types import Sample

from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.rollout.filters import first_objection
from slim_rl.rollout.rewards import JUDGED, judge, judged_seats
from slim_rl.runtime.journal import append_line, read_lines
from slim_rl.slime.context import Context
from slim_rl.slime.logs import log_metrics
from slim_rl.slime.samples import TASK, episodes, played
from slim_rl.training import advantages

STATE = "advantage.jsonl"
MAX_DROPPED_ROLLOUTS = 10
"""Abort the training after this many rollouts' worth of consecutive dropped groups."""


async def judge_group(args: Any, samples: Sequence[Sample | list[Sample]], **_: Any) -> list[float | None]:
    """The rewards of a group by `games.NAME.reward_function` (`--custom-rm-path` with `--group-rm`). Where it judges
    single episodes, they have their rewards already."""
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


def keep_group(args: Any, samples: Sequence[Sample | list[Sample]], **kwargs: Any) -> DynamicFilterOutput:
    """Keep the group if none of `train.filters` objects (`--dynamic-sampling-filter-path`). The episodes of all groups
    go to the shards, with the filter that dropped them.

    Raises:
        UserError: too many groups were dropped in a row.
    """
    context, group = Context.of(args), episodes(samples)
    objection = first_objection(group, context.parameters.train.filters)
    for episode in group:
        episode.dropped = objection or ""
    context.judged += group
    failed = any(episode.status == "failed" for episode in group)  # `generate` counts those
    limit = MAX_DROPPED_ROLLOUTS * max(context.rollout_size // len(samples), 1)
    if not failed and context.drops.reaches(limit, good=objection is None):
        raise UserError(
            f"{context.drops.count} groups of episodes in a row were dropped, the last one by the filter {objection}; "
            "nothing can be learnt from them. Check the base model or train.filters."
        )
    return DynamicFilterOutput(keep=objection is None, reason=objection)


def normalise_rewards(args: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float] | list[list[float]]]:
    """Rewards, and advantages by `train.advantage` (`--custom-reward-post-process-path`).

    Each seat is compared with the same seat of its task's other episodes. (SLIME itself takes the whole batch as one
    group once there are more samples than episodes.) Failed episodes, and those in which the policy never had a turn,
    have the advantage 0 and are left out of the comparison. `advantage.jsonl` keeps the estimator's state, a line per
    rollout, for a training that continues from a checkpoint.

    Returns:
        The samples' rewards, and for each sample one advantage, or one for each token of its response; see
        `token_advantages`.
    """
    context = Context.of(args)
    rewards = [float(sample.reward or 0.0) for sample in samples]
    outcomes = [played(sample, number) for number, sample in enumerate(samples)]
    ended = [i for i, (episode, seat) in enumerate(outcomes) if episode.status != "failed" and seat in episode.rewards]
    step = [advantages.Played(samples[i].group_index or 0, *outcomes[i]) for i in ended]
    path = context.folder and context.folder / STATE
    lines = read_lines(path) if path else ()
    before = [line["state"] for line in lines if line["rollout"] < args.logged_rollout_id]
    state: dict[str, Any] = before[-1] if before else {}
    values: list[Any] = [0.0] * len(samples)
    for i, value in zip(ended, advantages.estimate(context.parameters.train, step, state), strict=True):
        trace = outcomes[i].episode.traces[outcomes[i].seat]
        mask = trace.loss_mask[len(trace.token_ids) - samples[i].response_length :]
        values[i] = _spread(value, mask) if isinstance(value, list) else value
    if path and state:
        append_line(path, {"rollout": args.logged_rollout_id, "state": state})
        log_metrics(args, args.logged_rollout_id, "rollout", advantages.metrics(state))
    return rewards, values


def token_advantages(args: Any, rollout_data: dict[str, Any]) -> None:
    """One advantage for each token that this rank trains, from what `normalise_rewards` returned
    (`--custom-advantage-function-path`)."""
    # Not above: the rollout's processes have no Megatron.
    from slime.backends.megatron_utils.cp_utils import slice_log_prob_with_cp

    lengths = zip(rollout_data["total_lengths"], rollout_data["response_lengths"], strict=True)
    values = []
    for value, kl, (total, response) in zip(rollout_data["rewards"], rollout_data["kl"], lengths, strict=True):
        if isinstance(value, list):
            value = torch.tensor(slice_log_prob_with_cp(value, total, response), dtype=kl.dtype, device=kl.device)
        values.append(torch.ones_like(kl) * value)
    rollout_data["advantages"], rollout_data["returns"] = values, list(values)
    # SLIME logs the mean of these.
    rollout_data["rewards"] = [value.mean().item() if len(value) else 0.0 for value in values]


def _spread(values: Sequence[float], mask: Sequence[int]) -> list[float]:
    """The values of the sampled tokens, and 0 for the others."""
    sampled = iter(values)
    return [next(sampled) if trained else 0.0 for trained in mask]
