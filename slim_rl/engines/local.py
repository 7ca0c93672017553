"""An engine in this process: a Hugging Face causal LM in torch.

Requests that wait at the same time are sampled as one batch. What makes it fast: a session keeps its keys and
values, so the next turn of a dialogue computes only the new tokens, and so does a turn that is sampled again; identical
prompts (a GRPO group) are computed once, and so is what all prompts begin with (a system prompt with its tools); rows that
have stopped leave the batch.

Every request draws from its own random stream, so it draws the same tokens in any batch. Only the last digits of the
probabilities depend on the shape of the batch (on a GPU also of earlier ones since `reset`). So a batch is answered as a
whole, and has the same members in every run.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from slim_rl.core.errors import Diverged, UserError
from slim_rl.engines.engine import FinishReason, Generation, Sampling
from slim_rl.engines.graphs import Graphs
from slim_rl.engines.memory import enough_memory
from slim_rl.engines.model import overflow_hint

_KINDS = ("qwen2", "qwen3", "llama")
_BRANCHING_ROPES = ("dynamic", "longrope")
"""Their angles depend on the longest row, which a recorded step cannot look at."""
MIN_SHARED_TOKENS = 32
"""Shortest common prefix that is computed once."""


class LocalEngine:
    """Samples from `model`.

    Args:
        model: a Qwen2, Qwen3 or Llama with full attention. Its weights are read at every call, so a trainer may update
            them between calls; it must then call `reset`, because kept keys and values belong to the old weights.
        max_batch_sequences: more requests than this are not sampled at once.
        turn: engines that play in the same games share one, so that one samples at a time. If several did, the members of
            a batch, and with them the last digits, would depend on which engine is faster.

    Raises:
        UserError: the model is of another kind, for which cached attention would be wrong.
    """

    def __init__(self, model: PreTrainedModel, max_batch_sequences: int = 256, turn: asyncio.Lock | None = None):
        check_kind(model.config)
        self.model = model.eval()
        self.max_context_tokens = model.config.max_position_embeddings
        self._max_batch = max_batch_sequences
        self.turn = turn or asyncio.Lock()
        self._kept: dict[str, _Prefix] = {}
        self._waiting: list[_Request] = []
        self._server: asyncio.Task | None = None
        kind, device = model.config, model.device
        dimension = getattr(kind, "head_dim", None) or kind.hidden_size // kind.num_attention_heads
        self._shape = kind.num_hidden_layers, 2, 1, kind.num_key_value_heads, 0, dimension
        rope = (getattr(kind, "rope_parameters", None) or {}).get("rope_type")
        recordable = device.type == "cuda" and rope not in _BRANCHING_ROPES
        self._graphs = Graphs(self._shape, model.dtype, device) if recordable else None

    async def generate(self, input_ids: Sequence[int], sampling: Sampling) -> Generation:
        request = _Request(tuple(input_ids), sampling, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._server is None or self._server.done():
            self._server = asyncio.create_task(self._serve())
        return await request.answer

    def release(self, session: str) -> None:
        self._kept.pop(session, None)

    def reset(self) -> None:
        """Forget every session. Must be called when the weights have changed."""
        self._kept.clear()
        if self._graphs:
            self._graphs.clear()

    async def _serve(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # requests of this tick join the batch
            async with self.turn:
                batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
                try:
                    with enough_memory(f"while {len(batch)} dialogues were sampled at once", "lower concurrency"):
                        # In a thread, so that games and services are not held up.
                        ended = await asyncio.to_thread(self.sample, batch)
                except BaseException as error:
                    for request in batch:
                        if not request.answer.done():
                            request.answer.set_exception(error)
                    if not isinstance(error, Exception):
                        self._waiting.clear()
                        raise
                else:
                    for request in ended:
                        if not request.answer.done():
                            request.answer.set_result(request.generation())

    @torch.inference_mode()
    def sample(self, requests: Sequence["_Request"]) -> list["_Request"]:
        """Sample `requests` as one batch. Returns them in the order in which they ended: games go on in this order."""
        prefixes = self._prefixes(requests)
        room = max(len(r.input_ids) + r.sampling.max_new_tokens for r in requests)
        cache = _Cache.of([prefix.kv for prefix in prefixes], room, self._graphs)
        new_ids = [r.input_ids[len(p.ids) :] for r, p in zip(requests, prefixes, strict=True)]
        starts = torch.tensor([len(p.ids) for p in prefixes])
        logits = self.forward(new_ids, starts, cache)
        lengths = starts + torch.tensor([len(ids) for ids in new_ids])
        going, ended = list(requests), []  # each that goes on is a row of the cache
        while True:
            temperatures = torch.tensor([r.sampling.temperature for r in going])
            uniforms = torch.tensor([r.uniforms[len(r.tokens)] for r in going])
            forbidden = [r.sampling.forbidden_token_ids for r in going]
            tokens, logprobs = _draw(logits, temperatures, uniforms, forbidden)
            for i, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True)):
                if not math.isfinite(logprob):
                    raise Diverged(f"the model's log-probs are no finite numbers{overflow_hint(self.model)}")
                going[i].add(token, logprob)
                if going[i].reason:
                    self._keep(going[i], cache, i)
                    ended.append(going[i])
            rows = [i for i, request in enumerate(going) if not request.reason]
            if not rows:
                return ended
            if len(rows) < len(going):
                rows = cache.select(rows)
                going, lengths, tokens = [going[i] for i in rows], lengths[rows], tokens[rows]
            if self._graphs:
                logits = self._graphs.step(self._decode, tokens, lengths)
            else:
                logits = self.forward([(token,) for token in tokens.tolist()], lengths, cache)
            lengths = lengths + 1

    def _prefixes(self, requests: Sequence["_Request"]) -> list["_Prefix"]:
        """The computed beginning of each request: its session so far, or its prompt, computed once."""
        sessions = [self._beginning(request) for request in requests]
        prompts = list({r.input_ids[:-1]: None for r, p in zip(requests, sessions, strict=True) if p is None})
        computed = self._prefill(prompts)
        return [p or computed[r.input_ids[:-1]] for r, p in zip(requests, sessions, strict=True)]

    def _beginning(self, request: "_Request") -> "_Prefix | None":
        """What is kept of the request's session, up to where a turn was taken back; None if that is little."""
        kept, known = self._kept.get(request.sampling.session or ""), request.input_ids[:-1]
        if kept is None or known[: len(kept.ids)] == kept.ids:
            return kept
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(kept.ids, known, strict=False)))
        return _Prefix(kept.ids[:alike], kept.kv[:, :, :, :alike]) if alike >= MIN_SHARED_TOKENS else None

    def _prefill(self, prompts: list[tuple[int, ...]]) -> dict[tuple[int, ...], "_Prefix"]:
        layers, two, _, *shape = self._shape
        empty = torch.empty(layers, two, *shape, dtype=self.model.dtype, device=self.model.device)
        made: dict[tuple[int, ...], _Prefix] = {(): _Prefix((), empty)}
        prompts = [prompt for prompt in prompts if prompt]
        if prompts:
            alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))
            shared = tuple(tokens[0] for tokens in alike)[: min(map(len, prompts)) - 1]
            if len(prompts) == 1 or len(shared) < MIN_SHARED_TOKENS:
                shared = ()
            start = self._prefill([shared])[shared]
            cache = _Cache.of([start.kv] * len(prompts), max(map(len, prompts)))
            starts = torch.full((len(prompts),), len(shared))
            self.forward([prompt[len(shared) :] for prompt in prompts], starts, cache)
            made |= {ids: _Prefix(ids, cache.row(i, len(ids))) for i, ids in enumerate(prompts)}
        return made

    def _keep(self, request: "_Request", cache: "_Cache", row: int) -> None:
        if request.sampling.session is not None:
            ids = request.input_ids + tuple(request.tokens[:-1])  # the last token was sampled, never fed
            self._kept[request.sampling.session] = _Prefix(ids, cache.row(row, len(ids)))

    def forward(self, ids: Sequence[Sequence[int]], starts: torch.Tensor, cache: "_Cache") -> torch.Tensor:
        """Feed `ids[i]` from position `starts[i]` on; returns the logits (batch, vocabulary) after each row."""
        device = self.model.device
        width = max(map(len, ids))
        padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in ids], device=device)
        positions = (starts[:, None] + torch.arange(width)).to(device)
        lasts = torch.tensor([len(row) - 1 for row in ids], device=device)
        hidden = self._hidden(padded, positions, cache, int(positions.max()) + 1)
        return self.model.lm_head(hidden[torch.arange(len(ids), device=device), lasts]).float()

    def _decode(self, tokens: torch.Tensor, positions: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return self.model.lm_head(self._hidden(tokens, positions, _Cache(kv), kv.shape[4])[:, 0]).float()

    def _hidden(self, ids: torch.Tensor, positions: torch.Tensor, cache: "_Cache", used: int) -> torch.Tensor:
        return self.model.get_decoder()(
            input_ids=ids,
            position_ids=positions,
            attention_mask=cache.place(positions, used),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state


def check_kind(config: PreTrainedConfig) -> None:
    """Raises UserError if the local engine cannot sample from such a model."""
    windows = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if config.model_type not in _KINDS or windows:
        raise UserError(
            f"The local engine cannot sample from a {config.model_type!r} model"
            f"{' with ' + ', '.join(sorted(windows)) if windows else ''}; it runs {', '.join(_KINDS)} with "
            "full attention."
        )


@dataclass(eq=False)
class _Request:
    input_ids: tuple[int, ...]
    sampling: Sampling
    answer: asyncio.Future[Generation]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None
    """None until it has ended."""

    @cached_property
    def uniforms(self) -> np.ndarray:
        return np.random.Generator(np.random.Philox(self.sampling.seed)).random(self.sampling.max_new_tokens)

    def add(self, token: int, logprob: float) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.sampling.stop_token_ids:
            self.reason = "stop"
        elif len(self.tokens) >= self.sampling.max_new_tokens:
            self.reason = "length"

    def generation(self) -> Generation:
        assert self.reason
        return Generation(self.tokens, self.logprobs, self.reason)


class _Prefix(NamedTuple):
    ids: tuple[int, ...]
    kv: torch.Tensor
    """(layers, 2, key-value heads, tokens, head dimension)."""


class _Cache:
    """Keys and values of a batch whose rows have different lengths, each starting at position 0.

    Padded queries write beyond the end of their row. That is harmless, because no query sees a position later than its
    own, and the row's next token overwrites it.
    """

    def __init__(self, kv: torch.Tensor):
        self._kv = kv

    @classmethod
    def of(cls, rows: Sequence[torch.Tensor], room: int, graphs: Graphs | None = None) -> "_Cache":
        """One that holds these keys and values, and has `room` for so many tokens in each row."""
        layers, two, heads, _, dimension = rows[0].shape
        if graphs:
            kv = graphs.buffer(len(rows), room)
        else:
            kv = rows[0].new_zeros(layers, two, len(rows), heads, room, dimension)
        for i, row in enumerate(rows):
            kv[:, :, i, :, : row.shape[3]] = row
        return cls(kv)

    def row(self, i: int, tokens: int) -> torch.Tensor:
        return self._kv[:, :, i, :, :tokens].clone()

    def select(self, rows: list[int]) -> list[int]:
        """Drop all rows but these; returns them in their new order. The last ones move into the gaps, so that little is
        copied."""
        kept, moved = set(rows), [row for row in rows if row >= len(rows)]
        order = [row if row in kept else moved.pop() for row in range(len(rows))]
        for place, row in enumerate(order):
            if place != row:
                self._kv[:, :, place] = self._kv[:, :, row]
        self._kv = self._kv[:, :, : len(rows)]
        return order

    def place(self, positions: torch.Tensor, used: int) -> torch.Tensor:
        """Set where the next `update` writes, and that no position from `used` on is read; returns its attention mask
        (batch, 1, queries, keys)."""
        batch = positions.shape[0]
        self._rows = torch.arange(batch, device=positions.device)[:, None].expand_as(positions)
        self._positions = positions.clamp(max=self._kv.shape[4] - 1)
        self._used = min(used, self._kv.shape[4])
        keys = torch.arange(self._used, device=positions.device)
        return (keys <= positions[:, :, None])[:, None]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by each attention layer: takes (batch, heads, queries, dimension), returns all keys and values."""
        kv = self._kv[layer]
        kv[0][self._rows, :, self._positions] = keys.transpose(1, 2)
        kv[1][self._rows, :, self._positions] = values.transpose(1, 2)
        return kv[0, :, :, : self._used], kv[1, :, :, : self._used]

    def get_seq_length(self, *_: Any) -> int:
        return self._used


def _draw(
    logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor, forbidden: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row, by inverting the distribution function at `uniforms` (batch,) in [0, 1), and its log-prob.

    The log-prob is that without a mask, because the trainer knows none: so the ratio in its loss starts at 1. The policy
    gradient has one more term, the gradient of -log(1 - p(forbidden)). All episodes of a group that have read the same have
    it in common, so there advantages with a mean of 0 cancel it. Elsewhere it is neglected.
    """
    temperatures, uniforms = temperatures.to(logits.device), uniforms.to(logits.device)
    divisors = temperatures.where(temperatures > 0, 1.0)[:, None]
    logprobs = allowed = torch.log_softmax(logits / divisors, dim=-1)
    if any(forbidden):
        for i, ids in enumerate(forbidden):
            logits[i, list(ids)] = -torch.inf
        allowed = torch.log_softmax(logits / divisors, dim=-1)
    cumulative = allowed.double().exp().cumsum(dim=-1)
    sampled = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)[:, 0]
    sampled = sampled.clamp(max=logits.shape[1] - 1)  # where logits are not finite; the log-prob shows it
    drawn = torch.where(temperatures > 0, sampled, logits.argmax(dim=-1))
    return drawn, logprobs.gather(1, drawn[:, None])[:, 0]
