"""Supervised learning from demonstrations, for the tiny model and for checkpoints."""

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from slim_rl.core.errors import Diverged
from slim_rl.engines.local import MIN_SHARED_TOKENS
from slim_rl.engines.memory import enough_memory
from slim_rl.runtime.team import ALONE, Team
from slim_rl.training.checkpoint import load_state, save_state
from slim_rl.training.config import WarmstartConfig
from slim_rl.training.demonstrations import HeldOut, Tree
from slim_rl.training.memory import fitting_tokens
from slim_rl.training.optimizer import adamw, descend, muon_and_adamw, restore, set_learning_rate
from slim_rl.training.prompt import following
from slim_rl.training.weights import Weights

_LEARNING_RATE, _LEARNING_RATE_PRETRAINED = 2.5e-3, 3e-4
_LEAST_LENGTH = 0.8
"""No tree of a checkpoint's pass is shorter than this share of the longest one, so little of it is padding."""
_MEASURABLE = 12
"""Closings after a number of turns; the share of fewer is not measured."""
_MEASUREMENTS = 10
"""Measurements in the warm start of a checkpoint."""


def imitation_loss(
    model: PreTrainedModel, trees: Sequence[Tree], shared_tokens: int = MIN_SHARED_TOKENS
) -> torch.Tensor:
    """Weighted mean cross-entropy over the targets of a batch of trees.

    Args:
        shared_tokens: the shortest common prefix that is computed once.
    """
    logits, targets, weights = _predict(model, trees, shared_tokens)
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return (losses * weights).sum() / weights.sum()


def _predict(
    model: PreTrainedModel, trees: Sequence[Tree], shared_tokens: int = MIN_SHARED_TOKENS
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits (targets, vocabulary), token ids and weights (targets,) of the targets of all trees, one after another."""
    ids, positions, branches, forks = (
        torch.from_numpy(_pad([getattr(tree, name) for tree in trees], fill)).to(model.device)
        for name, fill in (("ids", 0), ("positions", 0), ("branches", -1), ("forks", 0))
    )
    order = torch.arange(ids.shape[1], device=model.device)
    same_branch = (branches[:, :, None] == branches[:, None, :]) & (order[:, None] >= order)
    on_the_path = (branches == 0)[:, None, :] & (positions[:, None, :] < forks[:, :, None])
    shared = _alike_tokens(trees, shared_tokens)
    hidden = following(
        model.get_decoder(),
        ids[:1, :shared],
        ids[:, shared:],
        position_ids=positions[:, shared:],
        attention_mask=(same_branch | on_the_path)[:, None, shared:],
    )
    rows = torch.from_numpy(np.repeat(np.arange(len(trees)), [len(tree.targets) for tree in trees]))
    predictors, targets, weights = (
        torch.from_numpy(np.concatenate([getattr(tree, name) for tree in trees])).to(model.device)
        for name in ("predictors", "targets", "weights")
    )
    return model.lm_head(hidden[rows, predictors - shared]).float(), targets, weights


def _alike_tokens(trees: Sequence[Tree], fewest: int) -> int:
    """Number of tokens with which all trees begin and that predict no target; 0 if they are fewer than `fewest`."""
    least = min(int(tree.predictors.min()) for tree in trees)
    beginnings = np.array([tree.ids[:least] for tree in trees])
    alike = int((beginnings == beginnings[0]).all(axis=0).cumprod().sum())
    return alike if len(trees) > 1 and alike >= fewest else 0


def _pad(rows: list[np.ndarray], fill: int) -> np.ndarray:
    padded = np.full((len(rows), max(map(len, rows))), fill)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


async def imitate(
    config: WarmstartConfig,
    weights: Weights,
    batches: Callable[[int], Sequence[Tree]],
    folder: Path,
    held_out: Sequence[HeldOut] | None = None,
    team: Team = ALONE,
    checkpoint_steps: int = 40,
) -> list[dict[str, float]]:
    """Train `weights`, going on from the state in `folder`.

    Args:
        batches: this process's share of the trees of a step.
        held_out: for a pretrained model, which AdamW trains. It is measured on them, and stops early if `config.stop_at`
            says so. None for the tiny model.
        team: adds up the gradients of the tiny model.
        checkpoint_steps: steps between states in `folder`.

    Raises:
        Diverged: the gradient or a weight is not finite.

    Returns:
        Each measurement as the columns `step` and `right_after_K`, see `right_closings`; none for the tiny model.
    """
    steps = math.ceil(config.demonstrations / config.batch)
    peak = peak_rate(config, pretrained=held_out is not None)
    model, optimizers = weights.model, _optimizers(weights, pretrained=held_out is not None)
    most_tokens = fitting_tokens(model.config, dtype=model.dtype, device=model.device)
    first, measured = _resumed(folder, weights, optimizers)
    # Few tokens of the tiny model's lessons are padding, and a GPU is faster with few passes.
    least_length = _LEAST_LENGTH if held_out is not None and model.device.type == "cpu" else 0.0
    with tqdm(total=steps, initial=first, desc="warm start", unit="step", disable=not team.leads) as bar:
        for step in range(first, steps + 1):
            if held_out is not None and (step % math.ceil(steps / _MEASUREMENTS) == 0 or step == steps):
                measured = [*(row for row in measured if row["step"] < step), measure(model, held_out, step)]
                bar.write(", ".join(f"{name} {value:.3g}" for name, value in measured[-1].items()))
                shares = [value for name, value in measured[-1].items() if name != "step"]
                if config.stop_at and min(shares, default=0) >= config.stop_at:
                    break
            if step == steps:
                break
            weights.zero_grad()
            loss = await backward(weights, batches(step), most_tokens, least_length, team)
            warmed_up = min(1.0, (step + 1) / max(config.warmup_steps, 1))
            cosine = 1 + math.cos(math.pi * step / steps)
            set_learning_rate(optimizers, peak * (warmed_up * cosine / 2))
            try:
                descend(weights, optimizers, 1.0, team)
            except Diverged as error:
                raise Diverged(
                    f"Step {step + 1} of the warm start ended: {error}. What was learnt before is kept; the same command with "
                    f"a warmstart.learning_rate smaller than {peak:g} goes on from there."
                ) from None
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update()
            if (step + 1) % checkpoint_steps == 0 and team.leads:
                saved = [optimizer.state_dict() for optimizer in optimizers]
                state = {"step": step + 1, "weights": weights.state(), "optimizers": saved, "measured": measured}
                save_state(folder / "state.pt", state)
    return measured


def _resumed(
    folder: Path, weights: Weights, optimizers: list[torch.optim.Optimizer]
) -> tuple[int, list[dict[str, float]]]:
    """Restore the state in `folder`, if there is one; returns its step and what had been measured."""
    if not (state := load_state(folder / "state.pt")):
        return 0, []
    restore(state, weights, optimizers)
    return state["step"], state["measured"]


def peak_rate(config: WarmstartConfig, pretrained: bool) -> float:
    """The learning rate at the end of the warm-up."""
    return config.learning_rate or (_LEARNING_RATE_PRETRAINED if pretrained else _LEARNING_RATE)


def _optimizers(weights: Weights, pretrained: bool) -> list[torch.optim.Optimizer]:
    decay, betas = 0.01, (0.9, 0.98)
    if pretrained:
        return adamw(weights, _LEARNING_RATE_PRETRAINED, decay, betas)
    # At first the model is stuck until it finds which numbers belong to which pairs. Muon gets there in fewer
    # steps than AdamW alone.
    return muon_and_adamw(weights, _LEARNING_RATE, decay, betas)


async def backward(weights: Weights, trees: Sequence[Tree], max_tokens: int, least_length: float, team: Team) -> float:
    """Add the gradient of `imitation_loss` over the trees of the whole team, in passes of at most `max_tokens` padded tokens
    (but at least one tree) each; returns the loss.

    Args:
        trees: this process's share.
        least_length: a pass has no tree shorter than this share of its longest one.

    Raises:
        UserError: memory ran out.
    """
    whole = torch.tensor([sum(float(tree.weights.sum()) for tree in trees)], dtype=torch.float32)
    team.add([whole])
    passes: list[list[Tree]] = [[]]
    for tree in sorted(trees, key=length, reverse=True):
        longest = length(passes[-1][0]) if passes[-1] else 0
        if (len(passes[-1]) + 1) * longest > max_tokens or length(tree) < least_length * longest:
            passes.append([])
        passes[-1].append(tree)
    total = torch.zeros(())
    for part in filter(None, passes):
        await asyncio.sleep(0)  # here Ctrl-C is heard
        share = sum(float(tree.weights.sum()) for tree in part) / float(whole)
        with enough_memory("in a step of the warm start", "take a smaller model, or shorter games"):
            loss = imitation_loss(weights.model, part) * share
            weights.backward(loss)
        total += loss.detach().cpu()
        del loss  # in fp16 it holds its graph
    team.add([total])
    return float(total)


def length(tree: Tree) -> int:
    """In tokens."""
    return len(tree.ids)


def measure(model: PreTrainedModel, held_out: Sequence[HeldOut], step: int) -> dict[str, float]:
    """The columns of a measurement; a number of turns after which few demonstrations close is left out."""
    shares = {
        f"right_after_{k}": sum(right) / len(right)
        for k, right in sorted(right_closings(model, held_out).items())
        if len(right) >= _MEASURABLE
    }
    return {"step": step, **shares}


@torch.no_grad()
def right_closings(model: PreTrainedModel, held_out: Sequence[HeldOut]) -> dict[int, list[bool]]:
    """By number of turns before it, whether `model` would say each closing of these demonstrations as it is shown.

    Every token must be the likeliest one after those before it, except those that choose to close where a demonstrator
    may go on.
    """
    by_turns: dict[int, list[bool]] = {}
    for turns, tree in held_out:
        logits, targets, weights = _predict(model, [tree])
        right = (logits.argmax(dim=-1) == targets) | (weights < 1)
        sizes = np.bincount(tree.branches)[1:].tolist()  # the targets of closings come last, branch by branch
        for k, part in zip(turns, right[-sum(sizes) :].split(sizes), strict=True):
            by_turns.setdefault(k, []).append(bool(part.all()))
    return by_turns
