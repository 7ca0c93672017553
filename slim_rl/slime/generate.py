"""One episode, as SLIME asks for it."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from slime.utils.types import Sample

from slim_rl.core.episode import Episode
from slim_rl.core.errors import UserError
from slim_rl.core.player import Player
from slim_rl.engines.engine import EngineFailed, Generation, Sampling
from slim_rl.engines.sglang import generation
from slim_rl.rollout.collect import TRIES
from slim_rl.slime.context import Context
from slim_rl.slime.observability import build_sglang_meta_trace_attrs, trace_span
from slim_rl.slime.partner import Partner
from slim_rl.slime.samples import PLAYED, TASK, Played, begun, blank, request_of

log = logging.getLogger(__name__)

MAX_FAILED_ROLLOUTS = 2
"""Abort the training after this many rollouts' worth of consecutive failed episodes, or after a quarter of that if they
have failed for `slime.retry_seconds`."""
_PAUSE_SECONDS = 0.2
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
    was interrupted is continued from where it stopped. An episode that fails is played again, a few times; then it gives
    a sample with the status FAILED. It is never an exception.

    Raises:
        UserError: SLIME's router is gone, or too many episodes failed in a row.
    """
    context = Context.of(args)
    try:
        for _ in range(TRIES):
            recorder, episode = await _play(args, sample, sampling_params, evaluation)
            if episode.status != "failed":
                break
            log.warning("Episode %s failed: %s", episode.episode_id, episode.error)
            if recorder.engine_failed or not context.plays_again:
                break
        samples = recorder.finish(episode)
        failed, limit = episode.status == "failed", MAX_FAILED_ROLLOUTS * context.rollout_size
        streak = context.failures[episode.game]
        if streak.reaches(limit, good=not failed, seconds=context.parameters.slime.retry_seconds):
            raise UserError(f"{episode.game}: {streak.count} episodes failed in a row, the last with: {episode.error}")
    except Exception as error:
        context.ended = error
        raise
    # SLIME expects one shape of all groups, also of those where only one of two policies had a turn.
    return samples if context.several_policies and episode.status != "aborted" else samples[0]


async def _play(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool
) -> tuple["Recorder", Episode]:
    started, context = time.monotonic(), Context.of(args)
    if sample.tokens and begun(sample) is None:  # it failed, and is tried again
        vars(sample).update(vars(blank(sample)))
    recorder = Recorder(args, sample, sampling_params, evaluation)
    if TASK not in sample.metadata:
        return recorder, Episode("", "", status="failed", error="The sample has no task.")

    def partner(player: Player, name: str) -> Player:
        return Partner(player, name, sample, lambda: context.aborted)

    request = request_of(sample, context.parameters.games, "evaluate" if evaluation else "train")
    episode = await context.seating(recorder, sampling_params, partner).play(request)
    sample.non_generation_time += time.monotonic() - started - recorder.seconds
    return recorder, episode


class Recorder:
    """The engine of one episode. It fills a sample per seat with exactly what goes to SGLang and comes back."""

    def __init__(self, args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool):
        limits = (evaluation and "eval_max_context_len", "rollout_max_context_len")
        found = (getattr(args, name, None) for name in limits if name)
        self.max_context_tokens: int = next(filter(None, found), 2**31)
        self.seconds = 0.0
        """Time spent waiting for SGLang."""
        self.engine_failed = False
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
        try:
            return await self._whole_turn(sample, input_ids, sampling)
        except EngineFailed:
            self.engine_failed = True
            raise

    async def _whole_turn(self, sample: Sample, input_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Ask until the turn has ended or SLIME interrupts it. A server that gets new weights in the middle of it
        (`slime.mode: fully_async`) ends the request as aborted; then the rest is asked for.

        Raises:
            EngineFailed: the server ends request after request without a token.
        """
        ids: list[int] = []
        logprobs: list[float] = []
        moved = time.monotonic()
        while True:
            rest = replace(sampling, max_new_tokens=sampling.max_new_tokens - len(ids), seed=sampling.seed + len(ids))
            part = await self._ask(sample, [*input_ids, *ids], rest)
            ids += part.token_ids
            logprobs += part.logprobs
            cut = part.finish_reason == "abort" and not self._context.aborted
            if cut and len(ids) >= sampling.max_new_tokens:
                return Generation(ids, logprobs, "length")
            if not cut:
                return Generation(ids, logprobs, part.finish_reason)
            if part.token_ids:
                moved = time.monotonic()
            elif time.monotonic() - moved > self._context.parameters.slime.retry_seconds:
                raise EngineFailed("the engine ends every request by itself")
            else:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _ask(self, sample: Sample, input_ids: Sequence[int], sampling: Sampling) -> Generation:
        """One request. Raises UserError if SLIME's router is gone."""
        started, engine = time.monotonic(), self._context.engine
        more = {"return_routed_experts": True} if self._replays_routing else {}
        try:
            with trace_span(sample, "sglang_generate", attrs={"max_new_tokens": sampling.max_new_tokens}) as span:
                answer = await engine.request(
                    input_ids, sampling, self._sampling_params, lambda: self._context.aborted, more
                )
                if hasattr(span, "update"):
                    span.update(build_sglang_meta_trace_attrs(answer["meta_info"]))
        except EngineFailed as error:
            if self._context.is_gone(started):
                raise UserError(f"SLIME's router or all engines behind it are gone: {error}.") from None
            raise
        self.seconds += time.monotonic() - started
        part = generation(answer)
        sample.append_response_tokens(
            self._args,
            tokens=part.token_ids,
            log_probs=part.logprobs,
            meta_info=answer["meta_info"],
            text=answer.get("text"),
        )
        return part

    @property
    def _replays_routing(self) -> bool:
        return bool(getattr(self._args, "use_rollout_routing_replay", False))

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
            if episode.status == "failed":
                siblings = sample.rollout_id
                vars(sample).update(vars(blank(sample)))
                sample.rollout_id = siblings
            sample.status = _STATUS[episode.status]
            sample.reward = None if aborted else episode.rewards.get(seat, 0.0)
            sample.remove_sample = episode.status == "failed"
            sample.metadata[PLAYED] = Played(episode, seat)
            if not sample.response_length and not aborted:
                self._fill(sample)
        return list(samples.values())

    def _fill(self, sample: Sample) -> None:
        """What SLIME makes tensors of, where the policy said nothing."""
        sample.tokens, sample.loss_mask, sample.rollout_log_probs = [0, 0], [], []
        if getattr(self._args, "rollout_top_p", 1.0) != 1.0:
            sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets = [], [0]
        if self._replays_routing:
            sample.rollout_routed_experts = torch.zeros(
                1, self._args.num_layers, self._args.moe_router_topk, dtype=torch.int32
            )

    def _sample_of(self, seat: str) -> Sample:
        if seat not in self._samples:
            self._samples[seat] = blank(self._first) if self._samples else self._first
            if len(self._samples) > 1:
                for sibling in self._samples.values():
                    sibling.rollout_id = self._first.index
        return self._samples[seat]
