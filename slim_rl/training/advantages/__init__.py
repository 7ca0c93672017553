"""Advantages: by how much each trained sequence did better than expected.

An estimator is a module of this folder with a function `estimate`, named after the module; or a function of your own,
named by its import path: `train.advantage: my_module:estimate`. See `Estimator` for what it gets and returns.
"""

import json
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np

from slim_rl.core.episode import Episode
from slim_rl.core.errors import UserError, finite
from slim_rl.core.game import base_seat
from slim_rl.runtime.imports import function_at
from slim_rl.training.config import ESTIMATORS, TrainConfig

Advantage = float | list[float]
"""One value for all sampled tokens of a sequence, or one for each of them."""


class Played(NamedTuple):
    """A sequence to be trained on: what one seat said in one episode."""

    group: int
    """Number of the group in the batch. All episodes of a group play the same task."""
    episode: Episode
    seat: str


class Estimator(Protocol):
    def __call__(
        self, played: Sequence[Played], config: TrainConfig, state: dict[str, Any]
    ) -> Sequence[float | Sequence[float]]:
        """The advantage of each sequence of a training step.

        Args:
            played: in order, group by group. `played[i].episode.rewards[played[i].seat]` is the reward,
                `.episode.traces[seat]` the tokens.
            state: what the estimator remembers from step to step, as JSON values; empty at first. Change it
                in place. It is part of every checkpoint, so a resumed run goes on with it. The training
                curves show the numbers at its top level as `advantage/NAME`.

        Returns:
            For each sequence one float for all of its sampled tokens, or a list of floats, one for each
            sampled token in order (those with `loss_mask` 1).
        """


def find_estimator(name: str) -> Estimator:
    """Raises UserError: there is no such estimator."""
    if name in ESTIMATORS:
        return import_module(f"{__name__}.{name}").estimate
    return function_at(name)


def estimate(config: TrainConfig, played: Sequence[Played], state: dict[str, Any]) -> list[Advantage]:
    """The advantages of a step, from the estimator that `config.advantage` names; changes `state` in place.

    Of the sequences that one player has in an episode (`solver`, `solver#2`) the first one is compared; the others get its
    advantage, or the mean of its tokens'.

    Raises:
        UserError: the estimator returned the wrong number of values or one that is not finite, or keeps something in `state` that is not JSON.
    """
    everything = [(sequence.episode.episode_id, base_seat(sequence.seat)) for sequence in played]
    first: dict[tuple[str, str], Played] = {}
    for key, sequence in zip(everything, played, strict=True):
        first.setdefault(key, sequence)
    values = dict(zip(first, _estimate(config, list(first.values()), state), strict=True))
    shared = {key: math.fsum(value) / len(value) if isinstance(value, list) else value for key, value in values.items()}
    return [
        values[key] if sequence is first[key] else shared[key] for key, sequence in zip(everything, played, strict=True)
    ]


def _estimate(config: TrainConfig, played: Sequence[Played], state: dict[str, Any]) -> list[Advantage]:
    returned: Sequence[Any] = find_estimator(config.advantage)(played, config, state)
    try:
        values = [[finite(v) for v in value] if np.ndim(value) else finite(value) for value in returned]
    except ValueError as error:
        raise UserError(
            f"train.advantage: {config.advantage} gave an advantage that cannot be used: {error}."
        ) from None
    if len(values) != len(played):
        raise UserError(f"train.advantage: {config.advantage} gave {len(values)} values for {len(played)} sequences.")
    for value, (_, episode, seat) in zip(values, played, strict=True):
        sampled = sum(episode.traces[seat].loss_mask)
        if isinstance(value, list) and len(value) != sampled:
            raise UserError(
                f"train.advantage: {config.advantage} gave {len(value)} values for the {sampled} sampled tokens "
                f"of the seat {seat} in the episode {episode.episode_id}."
            )
    try:
        json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"train.advantage: the state of {config.advantage} is not JSON: {error}.") from None
    return values


def metrics(state: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that an estimator's state shows, by the names of metrics."""
    return {f"advantage/{name}": value for name, value in state.items() if isinstance(value, int | float)}
