"""One episode, as SLIME asks for it."""

import asyncio
import logging
import time
from typing import Any

from slime.utils.types import Sample

from slim_rl.core.episode import Episode
from slim_rl.core.errors import UserError
from slim_rl.core.player import Player
from slim_rl.rollout.collect import TRIES
from slim_rl.slime.context import Context
from slim_rl.slime.partner import Partner
from slim_rl.slime.recorder import Recorder
from slim_rl.slime.samples import TASK, clear, interrupted, request_of

log = logging.getLogger(__name__)

MAX_FAILED_ROLLOUTS = 2
"""Abort the training after this many rollouts' worth of consecutive failed episodes, or after a quarter of that if they
have failed for `slime.retry_seconds`."""


async def generate(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Play one episode (`--custom-generate-function-path`).

    Each seat of the policy fills a sample; samples of one episode share a `rollout_id`. An interrupted sample continues
    where it stopped. A failed episode is played again, a few times; then it gives a sample with the status FAILED. It is
    never an exception.

    Raises:
        UserError: SLIME's router is gone, or too many episodes failed in a row.
    """
    context = Context.of(args)
    for _ in range(TRIES):
        recorder, episode = await _play(args, sample, sampling_params, evaluation)
        if episode.status != "failed":
            break
        log.warning("Episode %s failed: %s", episode.episode_id, episode.error)
        if recorder.engine_failed or not context.plays_again:
            break
    samples = recorder.finish(episode)
    streak, now = context.failures[episode.game], asyncio.get_running_loop().time()
    limit, seconds = MAX_FAILED_ROLLOUTS * context.rollout_size, context.parameters.slime.retry_seconds
    if streak.reaches(limit, episode.status != "failed", now, seconds):
        raise UserError(f"{episode.game}: {streak.count} episodes failed in a row, the last with: {episode.error}")
    # SLIME expects one shape of all groups, also of those where only one of two policies had a turn.
    return samples if context.parameters.several_policies and episode.status != "aborted" else samples[0]


async def _play(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool
) -> tuple[Recorder, Episode]:
    started, context = time.monotonic(), Context.of(args)
    if sample.tokens and interrupted(sample) is None:  # it failed before
        clear(sample)
    recorder = Recorder(args, sample, sampling_params, evaluation)
    if TASK not in sample.metadata:
        return recorder, Episode("", "", status="failed", error="The sample has no task.")

    def partner(player: Player, name: str) -> Player:
        return Partner(player, name, sample, lambda: context.aborted)

    request = request_of(sample, context.parameters.games, "evaluate" if evaluation else "train")
    episode = await context.seating(recorder, sampling_params, partner).play(request)
    sample.non_generation_time += time.monotonic() - started - recorder.seconds
    return recorder, episode
