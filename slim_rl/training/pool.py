"""Earlier selves, frozen: to be played against, so that learning does not run in circles, and to be measured.

A pool of past checkpoints as opponents is old (fictitious self-play, Heinrich et al. 2015); preferring those
that still win is AlphaStar's (prioritised fictitious self-play, Vinyals et al. 2019, Methods).
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from slim_rl.config import TrainConfig
from slim_rl.engines.local import LocalEngine
from slim_rl.rollout.episode import Episode
from slim_rl.training.checkpoint import save_weights

SEAT = "pool"
"""Who sits by this name is drawn anew for every game."""

Results = dict[str, tuple[float, float]]
"""By opponent: points of the policy (1 for earning more than the opponent, half for as much), and episodes; both
fade from step to step, as the policy changes."""
_FADING = 0.9


class Pool:
    """The snapshots of a training run.

    Args:
        folder: gets a checkpoint folder for every snapshot; those of steps up to `step` are there already when
            a run goes on.
        step: training steps that `model` has behind it.
    """

    def __init__(self, config: TrainConfig, folder: Path, model: PreTrainedModel, step: int):
        self.engines: dict[str, LocalEngine] = {}
        """By name, the opponents there are, oldest first."""
        self._config, self._folder = config, folder
        if config.snapshot_every is None:
            return
        past = range(0, step, config.snapshot_every)
        for earlier in past[-config.pool_size :] if config.pool_size else ():
            self._open(earlier, type(model).from_pretrained(folder / _name(earlier)).to(model.device))
        self.add(step, model)

    def add(self, step: int, model: PreTrainedModel) -> bool:
        """Freeze `model` if it is time to."""
        if self._config.snapshot_every is None or step % self._config.snapshot_every:
            return False
        save_weights(self._folder / _name(step), model)
        frozen = copy.deepcopy(model)
        frozen.zero_grad()
        self._open(step, frozen)
        return True

    def _open(self, step: int, model: PreTrainedModel) -> None:
        if self._config.pool_size:
            self.engines[_name(step)] = LocalEngine(model)
            for oldest in list(self.engines)[: -self._config.pool_size]:
                del self.engines[oldest]

    def seated(
        self, seating: Callable[[int], tuple[str, ...]], seed: int, step: int, results: Results
    ) -> Callable[[int], tuple[str, ...]]:
        """`seating` with an opponent in the place of `pool`: the same in all episodes of a game."""
        names = list(self.engines)
        weights = np.array([self._weight(results.get(name)) for name in names])

        def seat(number: int) -> tuple[str, ...]:
            rng = np.random.default_rng([seed, step, number])
            players = seating(number)
            return tuple(
                str(rng.choice(names, p=weights / weights.sum())) if p == SEAT else p for p in players
            )

        return seat

    def _weight(self, result: tuple[float, float] | None) -> float:
        if self._config.opponents == "uniform" or result is None:
            return 1.0
        points, episodes = result
        # Hard opponents first; nobody is forgotten, for what was beaten once may not be beaten still.
        return max(1 - points / episodes, 0.05)

    def note(self, episodes: Sequence[Episode], results: Results) -> None:
        """Add what came of `episodes`, those of one step, to `results`."""
        for name, (points, count) in results.items():
            results[name] = (points * _FADING, count * _FADING)
        for episode in episodes:
            for seat, name in episode.seating.items():
                if name in self.engines and episode.rewards:
                    mine = max(episode.rewards[s] for s, n in episode.seating.items() if n == "policy")
                    theirs = episode.rewards[seat]
                    points, count = results.get(name, (0.0, 0.0))
                    results[name] = (points + (mine > theirs) + (mine == theirs) / 2, count + 1)


def _name(step: int) -> str:
    return f"step-{step:05d}"
