"""SLIME's rollout in the mode `fully_async`: groups are played while SLIME trains, and the filters choose among them.

SLIME's own (`slime/rollout/fully_async_rollout.py`) trains on failed groups too, plays hundreds of groups more than a
step needs, waits for ever if episodes raise errors, and does not evaluate.
"""

import asyncio
import copy
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from slime.rollout import sglang_rollout
from slime.rollout.base_types import RolloutFnTrainOutput
from slime.rollout.filter_hub.base_types import MetricGatherer, call_dynamic_filter
from slime.utils.async_utils import run
from slime.utils.misc import load_function
from slime.utils.types import Sample

from slim_rl.slime.context import Context
from slim_rl.slime.samples import flat

T = TypeVar("T")
Group = list[Sample] | list[list[Sample]]
_LOOK_SECONDS = 0.1


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """The next groups that the filters keep (`--rollout-function-path`), or SLIME's own evaluation.

    Raises:
        Exception: whatever an episode raised; the training ends.
    """
    if evaluation:
        return sglang_rollout.generate_rollout(args, rollout_id, data_source, evaluation=True)
    return run(_rollout(args, data_source))


class Players:
    """Play groups in SLIME's event loop, from rollout to rollout: as many at a time as a step needs. Each waits with its
    group while as many others wait to be trained on.

    From SLIME 0.4 on, the data source saves with its own state what its consumers hold (`slime/data/data_source.py`): here
    the groups that no rollout has returned, which a resumed training plays again.
    """

    def __init__(self, args: Any, data_source: Any):
        self._args, self._source = args, data_source
        self._changing, self._paused = threading.Lock(), False  # the state is saved in another thread
        self._taken: dict[int, Group] = {}
        """By the index of its first sample, each group as it came from the data source."""
        if hasattr(data_source, "consumers"):
            data_source.register_consumer("slim_rl", self)
        self.played: asyncio.Queue[Group | Exception] = asyncio.Queue(args.rollout_batch_size)
        self.tasks = [asyncio.create_task(self._play()) for _ in range(args.rollout_batch_size)]

    async def _play(self) -> None:
        params = sglang_rollout.GenerateState(self._args).sampling_params
        try:
            while True:
                groups = await self._unpaused(self._take)
                if not groups:
                    await asyncio.sleep(1)
                for samples in groups:
                    group = await sglang_rollout.generate_and_rm_group(self._args, samples, params.copy())
                    if any(sample.status == Sample.Status.ABORTED for sample in flat(group)):
                        await self._unpaused(partial(self._give_back, group))
                    else:
                        await self.played.put(group)
        except Exception as error:
            await self.played.put(error)

    def _take(self) -> list[Group]:
        groups: list[Group] = self._source.get_samples(1)
        self._taken |= {_index(group): copy.deepcopy(group) for group in groups}
        return groups

    def _give_back(self, group: Group) -> None:
        self._source.add_samples([group])
        del self._taken[_index(group)]

    async def _unpaused(self, change: Callable[[], T]) -> T:
        """`change()`, once the data source may be changed. Episodes go on meanwhile."""
        while True:
            with self._changing:
                if not self._paused:
                    return change()
            await asyncio.sleep(_LOOK_SECONDS)

    async def next(self) -> Group:
        """A group that was played. Raises whatever an episode raised."""
        group = await self.played.get()
        if isinstance(group, Exception):
            raise group
        del self._taken[_index(group)]
        return group

    def pause(self) -> bool:
        """No group is taken or given back until `resume`; returns whether that was so already."""
        with self._changing:
            was_paused, self._paused = self._paused, True
        return was_paused

    def resume(self) -> None:
        self._paused = False

    def state_dict(self) -> dict[str, Any]:
        return {"groups": list(self._taken.values())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.add_samples(state["groups"])

    def close(self) -> None:
        """No-op: the process ends."""


def _index(group: Group) -> int:
    index: int = flat(group)[0].index
    return index


async def _rollout(args: Any, data_source: Any) -> RolloutFnTrainOutput:
    context = Context.of(args)
    context.players = players = context.players or Players(args, data_source)
    keep = args.dynamic_sampling_filter_path and load_function(args.dynamic_sampling_filter_path)
    groups: list[Group] = []
    drops = MetricGatherer()
    while len(groups) < args.rollout_batch_size:
        group = await players.next()
        outcome = call_dynamic_filter(keep, args, group)
        if outcome.keep:
            groups.append(group)
        else:
            drops.on_dynamic_filter_drop(outcome.reason)
    return RolloutFnTrainOutput(samples=sorted(groups, key=_index), metrics=drops.collect())
