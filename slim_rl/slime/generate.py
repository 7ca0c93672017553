"""One episode, as SLIME asks for it."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from slime.utils.types import Sample

from slim_rl.core.episode import Episode
from slim_rl.core.errors import UserError
from slim_rl.core.message import Message, Tool
from slim_rl.core.player import Player
from slim_rl.players.policy import Interrupted
from slim_rl.rollout.collect import TRIES
from slim_rl.rollout.seating import PlayerMaker
from slim_rl.slime.context import Context
from slim_rl.slime.observability import trace_span
from slim_rl.slime.recorder import Recorder
from slim_rl.slime.samples import TASK, clear, interrupted, request_of

log = logging.getLogger(__name__)

MAX_FAILED_ROLLOUTS = 2
"""Abort the training after this many rollouts' worth of consecutive failed episodes, or after a quarter of that if they
have failed for `slime.retry_seconds`."""
_LOOK_SECONDS = 0.5


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

    def partner(name: str, maker: PlayerMaker) -> PlayerMaker:
        return lambda seat: _Partner(maker(seat), name, sample, context)

    request = request_of(sample, context.parameters.games, "evaluate" if evaluation else "train")
    episode = await context.seating(recorder, sampling_params, partner).play(request)
    sample.non_generation_time += time.monotonic() - started - recorder.seconds
    return recorder, episode


class _Partner(Player):
    """A model behind an API. Once SLIME has enough samples, nobody waits for it: an episode that is not needed costs no
    call. SLIME's trace shows the time of each turn."""

    def __init__(self, player: Player, name: str, sample: Sample, context: Context):
        self._player, self._name, self._sample, self._context = player, name, sample, context

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        turn = asyncio.ensure_future(self._player.respond(observation, tools))
        try:
            with trace_span(self._sample, "partner", attrs={"player": self._name}):
                while not turn.done():
                    if self._context.aborted:
                        raise Interrupted
                    await asyncio.wait([turn], timeout=_LOOK_SECONDS)
            return turn.result()
        finally:
            turn.cancel()

    def recall(self, observation: Sequence[Message], message: Message) -> None:
        self._player.recall(observation, message)

    def close(self) -> None:
        self._player.close()
