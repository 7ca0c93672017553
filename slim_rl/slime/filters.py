"""Which groups SLIME trains on."""

from collections.abc import Sequence
from typing import Any

from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.utils.types import Sample

from slim_rl.core.errors import UserError
from slim_rl.rollout.filters import first_objection
from slim_rl.slime.context import Context
from slim_rl.slime.samples import episodes

MAX_DROPPED_ROLLOUTS = 10
"""Abort the training after this many rollouts' worth of consecutive dropped groups."""


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
