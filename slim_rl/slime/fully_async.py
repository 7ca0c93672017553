"""SLIME's fully asynchronous rollout (`slime.mode: fully_async`), with the filters.

SLIME's own takes whatever its worker has played, failed groups too, lets it begin hundreds of groups more than a step
needs, and waits for ever if the episodes raise errors (github THUDM/slime, `slime/rollout/fully_async_rollout.py`).
"""

import asyncio
from typing import Any

from slime.rollout.base_types import RolloutFnTrainOutput
from slime.rollout.filter_hub.base_types import MetricGatherer, call_dynamic_filter
from slime.rollout.fully_async_rollout import AsyncRolloutWorker
from slime.utils.async_utils import run
from slime.utils.misc import load_function
from slime.utils.types import Sample

from slim_rl.slime.context import Context

_LOOK_SECONDS = 0.05
Group = list[Sample] | list[list[Sample]]


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnTrainOutput:
    """The next groups that the filters keep, while further ones are being played (`--rollout-function-path`).

    Raises:
        ValueError: it is asked for an evaluation.
        Exception: whatever an episode raised; the training ends.
    """
    if evaluation:
        raise ValueError("slime.mode: fully_async cannot evaluate; take another --eval-function-path")
    return run(_rollout(args, data_source))


class Player:
    """Plays groups in a thread, from rollout to rollout: as many at a time as a step needs, and as many in advance."""

    def __init__(self, args: Any, data_source: Any):
        self._source, self._limit = data_source, args.rollout_batch_size
        self.played: list[Group] = []
        """Groups that are complete, for the filters to look at."""
        self.worker = AsyncRolloutWorker(args, self, concurrency=self._limit)
        self.worker.start()

    def get_samples(self, number: int) -> list[list[Sample]]:
        """For the worker: as SLIME's data source, but nothing while enough is waiting to be trained on."""
        if self.worker.queue_size() + len(self.played) >= self._limit:
            return []
        return self._source.get_samples(number)

    def add_samples(self, groups: list[list[Sample]]) -> None:
        self._source.add_samples(groups)


async def _rollout(args: Any, data_source: Any) -> RolloutFnTrainOutput:
    context, drops = Context.of(args), MetricGatherer()
    player = context.player = context.player or Player(args, data_source)
    keep = args.dynamic_sampling_filter_path and load_function(args.dynamic_sampling_filter_path)
    kept: list[Group] = []
    while len(kept) < args.rollout_batch_size:
        if context.ended is not None:
            raise context.ended
        player.played += [group for _, group in player.worker.get_completed_groups()]
        if not player.played:
            await asyncio.sleep(_LOOK_SECONDS)
            continue
        group = player.played.pop(0)
        outcome = call_dynamic_filter(keep, args, group)
        if outcome.keep:
            kept.append(group)
        else:
            drops.on_dynamic_filter_drop(outcome.reason)
    return RolloutFnTrainOutput(samples=sorted(kept, key=_index), metrics=drops.collect())


def _index(group: Group) -> int:
    first = group[0]
    return (first[0] if isinstance(first, list) else first).index
