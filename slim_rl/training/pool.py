"""Earlier selves, frozen: opponents that keep learning from running in circles, and points of a learning curve.

Past checkpoints as opponents: fictitious self-play (Heinrich et al. 2015).
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from slim_rl.engines.local import LocalEngine
from slim_rl.training.checkpoint import save_model
from slim_rl.training.config import TrainConfig

SEAT = "pool"
"""The name of a player that is drawn from the pool."""


class Pool:
    """The snapshots of a training run.

    Args:
        folder: gets a checkpoint folder for every snapshot. When a run goes on, those of the steps before
            `step` are there already.
        step: training steps that `model` has behind it.
        writes: whether snapshots are written; of several processes that train together one does.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        model: PreTrainedModel,
        step: int,
        writes: bool = True,
        make_engine: Callable[[PreTrainedModel], LocalEngine] = LocalEngine,
    ):
        self.engines: dict[str, LocalEngine] = {}
        """The opponents in the pool by name, oldest first."""
        self._config, self._folder, self._writes, self._make_engine = config, folder, writes, make_engine
        if config.snapshot_every is None:
            return
        past = range(0, step, config.snapshot_every)
        for earlier in past[-config.pool_size :] if config.pool_size else ():
            frozen = type(model).from_pretrained(folder / _name(earlier))
            self._open(earlier, frozen.to(model.device))  # type: ignore[arg-type]
        self.add(step, model)

    def add(self, step: int, model: PreTrainedModel) -> bool:
        """Freeze `model` if a snapshot is due at this step; returns whether it is."""
        if self._config.snapshot_every is None or step % self._config.snapshot_every:
            return False
        if self._writes:
            save_model(self._folder / _name(step), model)
        if self._config.pool_size:
            frozen = copy.deepcopy(model)
            frozen.zero_grad()
            self._open(step, frozen)
        return True

    def _open(self, step: int, model: PreTrainedModel) -> None:
        self.engines[_name(step)] = self._make_engine(model)
        for oldest in list(self.engines)[: -self._config.pool_size]:
            del self.engines[oldest]

    def seated(self, players: tuple[str, ...], seed: Sequence[int]) -> tuple[str, ...]:
        """`players` with opponents drawn uniformly in the place of `pool`; the same for the same seed."""
        rng = np.random.default_rng(seed)
        return tuple(str(rng.choice(list(self.engines))) if name == SEAT else name for name in players)


def _name(step: int) -> str:
    return f"step-{step:05d}"
