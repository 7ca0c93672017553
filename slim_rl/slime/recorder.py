"""What goes to SGLang and comes back, as SLIME's samples."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from slime.utils.types import Sample

from slim_rl.core.episode import Episode
from slim_rl.core.errors import UserError
from slim_rl.engines.engine import EngineFailed, Generation, Sampling
from slim_rl.engines.sglang import generation
from slim_rl.slime.context import Context
from slim_rl.slime.observability import build_sglang_meta_trace_attrs, trace_span
from slim_rl.slime.samples import PLAYED, Played, blank, clear

_PAUSE_SECONDS = 0.2


class Recorder:
    """The engine of one episode. It fills a sample per seat with exactly what goes to SGLang and comes back."""

    def __init__(self, args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool):
        limits = (evaluation and "eval_max_context_len", "rollout_max_context_len")
        self.max_context_tokens: int = next((n for name in limits if name and (n := getattr(args, name, None))), 2**31)
        self.seconds = 0.0
        """Time spent waiting for SGLang."""
        self.engine_failed = False
        self._args, self._context = args, Context.of(args)
        self._sampling_params = sampling_params
        self._first = sample
        self._samples: dict[str, Sample] = {}
        """By seat."""

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
        clock = asyncio.get_running_loop().time
        moved = clock()
        while True:
            rest = replace(sampling, max_new_tokens=sampling.max_new_tokens - len(ids), seed=sampling.seed + len(ids))
            part = await self._ask(sample, [*input_ids, *ids], rest)
            ids += part.token_ids
            logprobs += part.logprobs
            if part.finish_reason != "abort" or self._context.aborted:
                return Generation(ids, logprobs, part.finish_reason)
            if len(ids) >= sampling.max_new_tokens:
                return Generation(ids, logprobs, "length")
            if part.token_ids:
                moved = clock()
            elif clock() - moved > self._context.parameters.slime.retry_seconds:
                raise EngineFailed("the engine ends every request by itself")
            else:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _ask(self, sample: Sample, input_ids: Sequence[int], sampling: Sampling) -> Generation:
        """One request. Raises UserError if SLIME's router is gone."""
        context, started = self._context, time.monotonic()
        more = {"return_routed_experts": True} if self._replays_routing else {}
        try:
            with trace_span(sample, "sglang_generate", attrs={"max_new_tokens": sampling.max_new_tokens}) as span:
                answer = await context.engine.request(
                    input_ids, sampling, self._sampling_params, lambda: context.aborted, more
                )
                if hasattr(span, "update"):
                    span.update(build_sglang_meta_trace_attrs(answer["meta_info"]))
        except EngineFailed as error:
            # A last wait, of at most a tenth, is not begun if it would end too late.
            waited = time.monotonic() - started >= 0.9 * context.parameters.slime.retry_seconds
            silent = waited and context.engine.answered < started
            if silent and not context.aborted:
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
        aborted, failed = episode.status == "aborted", episode.status == "failed"
        if len(samples) > 1 and aborted:
            # SLIME's buffer takes no lists of samples, so an interrupted dialogue of two policies starts over.
            return [replace(blank(self._first), status=Sample.Status.ABORTED)]
        for seat, sample in samples.items():
            if failed:
                siblings = sample.rollout_id
                clear(sample)
                sample.rollout_id = siblings
            sample.status = Sample.Status[episode.status.upper()]
            sample.reward = None if aborted else episode.rewards.get(seat, 0.0)
            sample.remove_sample = failed
            sample.metadata[PLAYED] = Played(episode, seat)
            if not sample.response_length and not aborted:
                self._fill(sample)
        return list(samples.values())

    def _fill(self, sample: Sample) -> None:
        """Add what SLIME makes tensors of, where the policy said nothing."""
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
