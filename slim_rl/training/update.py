"""An update of the policy: microbatches of sequences, the gradient of the loss, optimiser steps."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from slim_rl.core.episode import TokenTrace
from slim_rl.core.errors import UserError
from slim_rl.engines.local import MIN_SHARED_TOKENS
from slim_rl.runtime.team import ALONE, Team
from slim_rl.training.advantages import Advantage
from slim_rl.training.config import TrainConfig
from slim_rl.training.loss import is_clipped, kl_estimate, policy_loss, token_weights
from slim_rl.training.memory import fitting_tokens
from slim_rl.training.optimizer import descend
from slim_rl.training.prompt import following
from slim_rl.training.weights import Weights

SHARED_TOKENS_GPU = 1024
"""A shorter prompt is not worth a pass of its group alone on a GPU, which computes many groups in the same time."""


class TrainedSequence(NamedTuple):
    """One seat's part of an episode."""

    trace: TokenTrace
    advantage: Advantage
    episode: int
    """Its number in the batch, which the sequences of other seats share."""


async def update(
    config: TrainConfig,
    weights: Weights,
    optimizers: Sequence[torch.optim.Optimizer],
    sequences: Sequence[TrainedSequence],
    team: Team = ALONE,
    shared_tokens: int = MIN_SHARED_TOKENS,
) -> dict[str, float]:
    """Take `config.minibatches` optimiser steps on `sequences`, which `team` shares; returns metrics by name.

    `logprob_gap` is the largest difference between the rollout's log-probs and those recomputed here before the weights
    change, `logprob_gap_mean` and `logprob_gap_p99` are the mean and the 99th percentile. They show that what is trained on
    is what was sampled.

    Args:
        shared_tokens: the shortest prompt that sequences share in one pass.

    Raises:
        Diverged: the gradient or a weight is not finite.
        UserError: the mean gap is above `config.max_logprob_gap`.
    """
    totals = dict.fromkeys(("loss", "grad_norm", "clipped_fraction", "entropy"), 0.0)
    if config.kl_coefficient:
        totals["kl"] = 0.0
    gaps: dict[str, float] = {}
    model, checkpointing = weights.model, config.gradient_checkpointing
    max_tokens = config.microbatch_tokens or fitting_tokens(model.config, checkpointing, model.dtype, model.device)
    if model.device.type == "cuda":
        shared_tokens = max(shared_tokens, SHARED_TOKENS_GPU)
    if checkpointing:
        shared_tokens = sys.maxsize  # it allows no cache
        _checkpoint_layers(model, True)
    for i in range(config.minibatches):
        part = [s for s in sequences if s.episode % config.minibatches == i]
        if not part:
            continue
        lengths = torch.tensor([sum(s.trace.loss_mask) for s in part], dtype=torch.long)
        numbers = torch.tensor([s.episode for s in part], dtype=torch.long)
        shares = token_weights(lengths, numbers, config.average_over)
        weighted = list(zip(part, shares.tolist(), strict=True))
        weights.zero_grad()
        differences = [torch.zeros(0)]
        if team.size > 1:  # a part for each
            max_tokens = min(max_tokens, -(-_tokens(weighted) // team.size))
        for micro in team.share(list(_microbatches(weighted, max_tokens, shared_tokens)), _tokens):
            await asyncio.sleep(0)  # here Ctrl-C is heard
            sums, gap = _backward(config, weights, _Batch.of(micro, model.device, shared_tokens))
            for name, value in sums.items():
                totals[name] += value / config.minibatches
            differences.append(gap)
        if not gaps:
            gaps = logprob_gaps(
                await team.gather(torch.cat(differences).numpy()),
                config.max_logprob_gap,
                "Take model.precision: fp32, or train.importance_cap: 2 and a larger limit.",
            )
        totals["grad_norm"] += descend(weights, optimizers, config.max_grad_norm, team) / config.minibatches
    if checkpointing:
        _checkpoint_layers(model, False)
    parts = await team.gather(totals)
    return {
        **{name: value if name == "grad_norm" else sum(p[name] for p in parts) for name, value in totals.items()},
        **gaps,
    }


def _backward(config: TrainConfig, weights: Weights, batch: "_Batch") -> tuple[dict[str, float], torch.Tensor]:
    """Add the gradient of a microbatch; returns metrics that are sums over it, and the gap of each sampled token."""
    logprobs, entropy = batch.logprobs(weights.model, config.temperature)
    old, gains = batch.old_logprobs, batch.advantages
    if config.importance_cap:
        gains = gains * (logprobs.detach() - old).exp().clamp(max=config.importance_cap)
        old = logprobs.detach()
    losses = policy_loss(logprobs, old, gains, config.clip_low, config.clip_high)
    by_token = {"entropy": entropy}
    if config.kl_coefficient:
        with torch.no_grad(), weights.reference() as reference:
            reference_logprobs, _ = batch.logprobs(reference, config.temperature)
        by_token["kl"] = kl_estimate(logprobs, reference_logprobs, config.kl_estimator)
        losses = losses + config.kl_coefficient * by_token["kl"]
    loss = (losses * batch.weights).sum()
    weights.backward(loss)
    with torch.no_grad():
        by_token["clipped_fraction"] = is_clipped(logprobs, old, gains, config.clip_low, config.clip_high)
        sums = {name: float((values * batch.weights).sum()) for name, values in by_token.items()}
        return {"loss": float(loss), **sums}, (logprobs - batch.old_logprobs).abs().cpu()


def logprob_gaps(differences: Sequence[np.ndarray], limit: float, advice: str) -> dict[str, float]:
    """How far the trainer's log-probs are from the rollout's. Raises UserError: on average by more than `limit`."""
    every = np.concatenate(differences) if any(map(len, differences)) else np.zeros(1)
    if (mean := float(every.mean())) > limit:
        raise UserError(
            f"The trainer's log-probs of the sampled tokens differ from the rollout's by {mean:.3g} on average, which is "
            f"more than train.max_logprob_gap, {limit:g}. {advice}"
        )
    return {
        "logprob_gap": float(every.max()),
        "logprob_gap_mean": mean,
        "logprob_gap_p99": float(np.quantile(every, 0.99)),
    }


def _checkpoint_layers(model: PreTrainedModel, on: bool) -> None:
    """Layers checkpoint in training mode alone. The modules in them stay in evaluation mode, without dropout."""
    if on:
        model.activation_checkpointing_enable()
    else:
        model.activation_checkpointing_disable()
        model.disable_input_require_grads()  # transformers keeps its hook, and adds one each time
    for layer in model.get_decoder().layers:
        layer.training = on


Weighted = tuple[TrainedSequence, float]
"""A sequence, and the weight of each of its tokens."""


def _tokens(micro: list[Weighted]) -> int:
    return sum(len(sequence.trace.token_ids) for sequence, _ in micro)


def _microbatches(sequences: Sequence[Weighted], max_tokens: int, shared_tokens: int) -> Iterator[list[Weighted]]:
    """Sequences of similar length together, at most `max_tokens` padded tokens (but at least one sequence) each. A batch
    in which all begin with the same prompt of `shared_tokens` has its tokens once."""
    by_prompt: dict[tuple[int, ...], list[Weighted]] = {}
    for sequence in sequences:
        by_prompt.setdefault(_shared(sequence[0].trace, shared_tokens), []).append(sequence)
    alone = [group.pop() for prompt, group in by_prompt.items() if prompt and len(group) == 1]
    by_prompt[()] = by_prompt.get((), []) + alone
    for prompt, group in by_prompt.items():
        batch: list[Weighted] = []
        for sequence in sorted(group, key=lambda s: len(s[0].trace.token_ids), reverse=True):
            longest = len((batch or [sequence])[0][0].trace.token_ids) - len(prompt)
            if batch and len(prompt) + (len(batch) + 1) * longest > max_tokens:
                yield batch
                batch = []
            batch.append(sequence)
        if batch:
            yield batch


def _shared(trace: TokenTrace, least: int) -> tuple[int, ...]:
    """What a sequence may share with others: its prompt without the last token; nothing if that is shorter than `least`."""
    shared = trace.token_ids[: trace.loss_mask.index(1) - 1] if 1 in trace.loss_mask else []
    return tuple(shared) if len(shared) >= least else ()


class _Batch(NamedTuple):
    """Sequences as tensors. What belongs to single tokens has one entry per sampled token, row by row."""

    shared: torch.Tensor
    """(1, tokens) int64: how all sequences begin; may be empty."""
    ids: torch.Tensor
    """(sequences, length) int64: what follows, padded at the end, where causal attention does not look."""
    sampled: torch.Tensor
    """(sequences, length) bool."""
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, weighted: Sequence[Weighted], device: torch.device, shared_tokens: int) -> "_Batch":
        sequences = [sequence for sequence, _ in weighted]
        beginnings = {_shared(s.trace, shared_tokens) for s in sequences} if len(sequences) > 1 else {()}
        shared = torch.tensor([beginnings.pop() if len(beginnings) == 1 else ()], dtype=torch.long)
        length = max(len(s.trace.token_ids) for s in sequences)
        ids = torch.zeros(len(sequences), length, dtype=torch.long)
        sampled = torch.zeros(len(sequences), length, dtype=torch.bool)
        old, gains = torch.zeros(len(sequences), length), torch.zeros(len(sequences), length)
        for i, (trace, advantage, _) in enumerate(sequences):
            ids[i, : len(trace.token_ids)] = torch.tensor(trace.token_ids)
            sampled[i, : len(trace.token_ids)] = torch.tensor(trace.loss_mask, dtype=torch.bool)
            old[i, : len(trace.token_ids)] = torch.tensor(trace.logprobs)
            gains[i, sampled[i]] = torch.tensor(advantage)
        rows = torch.arange(len(sequences))[:, None].expand_as(ids)[sampled]
        weights = torch.tensor([weight for _, weight in weighted])[rows]
        rest = slice(shared.shape[1], None)
        tensors = shared, ids[:, rest], sampled[:, rest], old[sampled], gains[sampled], weights
        return cls(*(tensor.to(device) for tensor in tensors))

    def logprobs(self, model: PreTrainedModel, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-prob of each sampled token under `model`, given all before it, and the entropy of the
        distribution that it was drawn from, without gradient; both (sampled tokens,) float32."""
        hidden = following(model.get_decoder(), self.shared, self.ids)
        # In place, because a row has a number for each entry of the vocabulary.
        logits = model.lm_head(hidden[:, :-1][self.sampled[:, 1:]]).float().div_(temperature)
        logprobs = torch.log_softmax(logits, dim=-1)
        del logits
        with torch.no_grad():
            entropy = -logprobs.exp().mul_(logprobs).sum(dim=-1)
        return logprobs.gather(1, self.ids[self.sampled][:, None])[:, 0], entropy
