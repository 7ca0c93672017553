"""Our advantages in SLIME's training."""

from collections.abc import Sequence
from typing import Any

import torch
from slime.utils.types import Sample

from slim_rl.runtime.journal import append_line, read_lines
from slim_rl.slime.context import Context
from slim_rl.slime.logs import log_metrics
from slim_rl.slime.samples import played
from slim_rl.training import advantages

STATE = "advantage.jsonl"


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
