"""One episode, as SLIME asks for it."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slime.utils.types import Sample

from slim_rl.core.episode import Episode
from slim_rl.core.errors import UserError
from slim_rl.engines.engine import EngineFailed, Generation, Sampling
from slim_rl.engines.sglang import generation
from slim_rl.slime.context import Context
from slim_rl.slime.samples import PLAYED, TASK, Played, begun, blank, request_of

log = logging.getLogger(__name__)

MAX_FAILED_ROLLOUTS = 2
"""Abort the training after this many rollouts' worth of consecutive failed episodes."""
_STATUS = {
    "completed": Sample.Status.COMPLETED,
    "truncated": Sample.Status.TRUNCATED,
    "failed": Sample.Status.FAILED,
    "aborted": Sample.Status.ABORTED,
}


async def generate(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Play one episode (`--custom-generate-function-path`).

    Each seat that the policy takes fills a sample. Several samples of an episode share a `rollout_id`. A sample that
    was interrupted is continued from where it stopped. A failed episode gives a sample with the status FAILED; it is
    never an exception.

    Raises:
        UserError: too many episodes failed in a row.
    """
    started = time.monotonic()
    context = Context.of(args)
    if sample.tokens and begun(sample) is None:  # it failed, and is tried again
        vars(sample).update(vars(blank(sample)))
    recorder = Recorder(args, sample, sampling_params, evaluation)
    if TASK in sample.metadata:
        request = request_of(sample, context.parameters.games, "evaluate" if evaluation else "train")
        episode = await context.seating(recorder, sampling_params).play(request)
    else:
        episode = Episode("", "", status="failed", error="The sample has no task.")
    samples = recorder.finish(episode)
    samples[0].non_generation_time += time.monotonic() - started - recorder.seconds
    failed = episode.status == "failed"
    if failed:
        log.warning("Episode %s failed: %s", episode.episode_id, episode.error)
    streak = context.failures[episode.game]
    if streak.reaches(MAX_FAILED_ROLLOUTS * context.rollout_size, good=not failed):
        raise UserError(f"{episode.game}: {streak.count} episodes failed in a row, the last with: {episode.error}")
    # SLIME expects one shape of all groups, also of those where only one of two policies had a turn.
    return samples if context.several_policies and episode.status != "aborted" else samples[0]


class Recorder:
    """The engine of one episode. It fills a sample per seat with exactly what goes to SGLang and comes back."""

    def __init__(self, args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool):
        limits = (evaluation and "eval_max_context_len", "rollout_max_context_len")
        found = (getattr(args, name, None) for name in limits if name)
        self.max_context_tokens: int = next(filter(None, found), 2**31)
        self.seconds = 0.0
        """Time spent waiting for SGLang."""
        self._args, self._context = args, Context.of(args)
        self._sampling_params = sampling_params
        self._first = sample
        self._samples: dict[str, Sample] = {}

    async def generate(self, input_ids: Sequence[int], sampling: Sampling) -> Generation:
        sample = self._sample_of(str(sampling.session).rpartition("/")[2])
        if not sample.tokens:
            sample.tokens = list(input_ids)
        elif heard := list(input_ids[len(sample.tokens) :]):
            text = self._context.tokenizer.decode(heard)
            sample.append_response_tokens(self._args, tokens=heard, trainable=False, text=text)
        if self._context.aborted:
            return Generation([], [], "abort")
        limit = self._sampling_params.get("max_new_tokens") or sampling.max_new_tokens
        session = sample.session_id or sampling.session  # SLIME names none in an evaluation
        sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, limit), session=session)
        started = time.monotonic()
        answer = await self._context.engine.request(
            input_ids, sampling, self._sampling_params, lambda: self._context.aborted
        )
        self.seconds += time.monotonic() - started
        sampled = generation(answer)
        if sampled.finish_reason == "abort" and not self._context.aborted:
            raise EngineFailed("the engine ended the request by itself")
        sample.append_response_tokens(
            self._args,
            tokens=sampled.token_ids,
            log_probs=sampled.logprobs,
            meta_info=answer["meta_info"],
            text=answer.get("text"),
        )
        return sampled

    def release(self, session: str) -> None:
        """No-op: SGLang evicts its own cache."""

    def finish(self, episode: Episode) -> list[Sample]:
        """The samples with the outcome of the episode."""
        samples = self._samples or {"": self._first}
        aborted = episode.status == "aborted"
        if len(samples) > 1 and aborted:
            # SLIME's buffer takes no lists of samples, so an interrupted dialogue of two policies starts over.
            return [replace(blank(self._first), status=Sample.Status.ABORTED)]
        for seat, sample in samples.items():
            sample.status = _STATUS[episode.status]
            sample.reward = None if aborted else episode.rewards.get(seat, 0.0)
            sample.remove_sample = episode.status == "failed"
            sample.metadata[PLAYED] = Played(episode, seat)
            if not aborted:
                # Also without any response SLIME wants a token, a mask and log-probs.
                sample.tokens = sample.tokens or [0]
                sample.loss_mask = sample.loss_mask or []
                sample.rollout_log_probs = sample.rollout_log_probs or []
        return list(samples.values())

    def _sample_of(self, seat: str) -> Sample:
        if seat not in self._samples:
            self._samples[seat] = blank(self._first) if self._samples else self._first
            if len(self._samples) > 1:
                for sibling in self._samples.values():
                    sibling.rollout_id = self._first.index
        return self._samples[seat]
