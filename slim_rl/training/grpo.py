"""GRPO on one machine: play groups of episodes, compare them, follow the gradient.

Group-relative policy optimisation (Shao et al. 2024, arXiv 2402.03300) with options from DAPO (Yu et al. 2025, arXiv
2503.14476): a separate upper clip, token-level loss, groups without variance replaced. The episode is the unit of
reward; `training/advantages` turns rewards into an advantage for each sequence or token.

Where every group of a step is dropped there is nothing to learn from, and the step ends without an update.

A step is a function of the seed, the step's number and the weights before it; how many groups it plays at once, of the
steps before. What is saved after each step is all that the next one needs, so a killed run goes on with the numbers it
would have had.
"""

import asyncio
import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from slim_rl.core.episode import TokenTrace
from slim_rl.core.errors import UserError
from slim_rl.engines.local import MIN_SHARED_TOKENS, LocalEngine
from slim_rl.rollout.collect import TRIES, collect
from slim_rl.rollout.filters import Group, first_objection
from slim_rl.rollout.rewards import judge_groups
from slim_rl.rollout.seating import Request, Seating
from slim_rl.rollout.shards import count_failures
from slim_rl.rollout.store import Store
from slim_rl.rollout.summary import describe
from slim_rl.rollout.tasks import Mixture
from slim_rl.runtime.team import ALONE, Team
from slim_rl.training import advantages
from slim_rl.training.benchmarks import Benchmarks
from slim_rl.training.checkpoint import load_state, save_state
from slim_rl.training.config import TrainConfig
from slim_rl.training.loss import kl_estimate, policy_loss, token_weights
from slim_rl.training.memory import fitting_tokens
from slim_rl.training.optimizer import freeze_below, muon_and_adamw, restore, set_learning_rate, trained_weights
from slim_rl.training.pool import Pool
from slim_rl.training.prompt import following

MAX_OVERSAMPLING = 2
"""A step plays at most this multiple of `games_per_step` groups when filters drop some."""

RECENT_STEPS = 8
"""How many groups the filters will drop is guessed from so many steps."""

MAX_FAILED_GROUPS = 10
"""Training ends after this many groups of one game in a row in which every episode failed."""


class TrainedSequence(NamedTuple):
    """One seat's part of an episode."""

    trace: TokenTrace
    advantage: advantages.Advantage
    episode: int
    """Its number in the batch, which the sequences of other seats share."""


@dataclass
class Run:
    """The progress of a training run. All of it is in a checkpoint, so all of it is plain values."""

    step: int = 0
    next_group: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    """Metrics of each step."""
    estimator: dict[str, Any] = field(default_factory=dict)
    """The state of the advantage estimator."""
    failed: dict[str, int] = field(default_factory=dict)
    """By game, how many groups in a row failed as a whole."""


async def train(
    config: TrainConfig,
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    tasks: Mixture,
    make_seating: Callable[[Mapping[str, LocalEngine]], Seating],
    concurrency: int,
    folder: Path,
    on_step: Callable[[dict[str, float]], None] = lambda metrics: None,
    paid: bool = False,
    status: Callable[[], str] = str,
    benchmarks: Benchmarks | None = None,
    team: Team = ALONE,
) -> None:
    """Train `model` in place for `config.steps` steps, going on from what `folder` holds.

    Args:
        reference: the reference of the KL term; None without one.
        tasks: the task of each group, by the group's number.
        make_seating: given the engines of `policy` and of every opponent in the pool, by name.
        folder: gets `state.pt`; in `rollouts/` a folder of shards for each step, with all episodes that it played; in
            `snapshots/` the frozen weights of every `config.snapshot_every` steps.
        on_step: is called with each step's metrics by name, those of the steps before an interruption too.
        paid: whether an episode may cost money. Then it is kept as soon as it ends, and none is played that a filter may
            make needless. Otherwise a killed run plays its last batch of groups again, so that it gets the numbers of an
            uninterrupted run.
        status: progress-bar suffix.
        benchmarks: their metrics are logged with those of the step that follows, and the last ones by themselves.
        team: shares each step's episodes and sequences.

    Raises:
        UserError: a filter or the advantage estimator does not exist, or a game's environment is down.
    """
    advantages.find_estimator(config.advantage)
    if config.trained_layers:
        freeze_below(model, config.trained_layers)
    optimizers = _optimizers(config, model)
    engine = LocalEngine(model)
    # Averaging iterates: Polyak and Juditsky 1992, SIAM J. Control Optim. 30:4.
    averaged = copy.deepcopy(model) if config.averaging_decay else model
    measured = engine if averaged is model else LocalEngine(averaged)
    run = _resume(folder / "state.pt", model, averaged, optimizers)
    pool = Pool(config, folder / "snapshots", averaged, run.step, writes=team.leads, make_engine=LocalEngine)
    seating = make_seating({"policy": engine, **pool.engines})
    saved_at = time.monotonic()
    for metrics in run.history:
        on_step(metrics)
    with tqdm(total=config.steps, initial=run.step, desc="training", unit="step", disable=not team.leads) as bar:
        while run.step < config.steps:
            benchmarked = await benchmarks.at(run.step, measured) if benchmarks else {}
            rollouts = folder / "rollouts" / f"step-{run.step:05d}"
            groups, played, run.next_group = await _rollout(
                config, tasks, seating, pool, run, concurrency, rollouts, paid, status, team
            )
            for used in (engine, *pool.engines.values()):
                used.reset()
            warmed_up = min(1.0, (run.step + 1) / max(config.warmup_steps, 1))
            set_learning_rate(optimizers, config.learning_rate * warmed_up)
            metrics = {
                **describe([episode for group in played for episode in group]),
                "groups_dropped": len(played) - len(groups),
                "failures": count_failures(rollouts),
                "updated": float(bool(groups)),
                **benchmarked,
            }
            if groups:
                trained = sequences(config, groups, run.estimator)
                metrics |= await update(config, model, reference, optimizers, trained, team)
                metrics |= advantages.metrics(run.estimator)
            if config.averaging_decay:
                with torch.no_grad():
                    for mean, weight in zip(averaged.parameters(), model.parameters(), strict=True):
                        mean.lerp_(weight, 1 - config.averaging_decay)
            run.step += 1
            run.history.append(metrics)
            if pool.add(run.step, averaged):
                seating = make_seating({"policy": engine, **pool.engines})
            waited = time.monotonic() - saved_at >= 60 * config.checkpoint_minutes
            due = (run.step % config.checkpoint_every == 0 and waited) or run.step == config.steps
            if due and team.leads:
                _save(folder / "state.pt", model, averaged, optimizers, run)
                saved_at = time.monotonic()
            on_step(metrics)
            bar.set_postfix_str(f"reward {metrics.get('reward', math.nan):.3f}")
            bar.update()
    if benchmarks and len(run.history) == config.steps:
        run.history.append(await benchmarks.at(run.step, measured, last=True))
        if team.leads:
            _save(folder / "state.pt", model, averaged, optimizers, run)
        on_step(run.history[-1])
    model.load_state_dict(averaged.state_dict())


def _optimizers(config: TrainConfig, model: PreTrainedModel) -> list[torch.optim.Optimizer]:
    betas = (0.9, 0.95)
    if config.optimizer == "muon":
        return muon_and_adamw(model, config.learning_rate, config.weight_decay, betas)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [torch.optim.AdamW(trained, lr=config.learning_rate, betas=betas, weight_decay=config.weight_decay)]


def _save(
    path: Path, model: PreTrainedModel, averaged: PreTrainedModel, optimizers: Sequence[torch.optim.Optimizer], run: Run
) -> None:
    saved = [optimizer.state_dict() for optimizer in optimizers]
    state = {"model": trained_weights(model), "optimizers": saved, "run": vars(run)}
    if averaged is not model:
        state["averaged"] = trained_weights(averaged)
    save_state(path, state)


def _resume(
    path: Path, model: PreTrainedModel, averaged: PreTrainedModel, optimizers: Sequence[torch.optim.Optimizer]
) -> Run:
    state = load_state(path)
    if state is None:
        return Run()
    restore(state, model, optimizers)
    averaged.load_state_dict(state.get("averaged", state["model"]), strict=False)
    return Run(**state["run"])


async def _rollout(
    config: TrainConfig,
    tasks: Mixture,
    seating: Seating,
    pool: Pool,
    run: Run,
    concurrency: int,
    folder: Path,
    paid: bool,
    status: Callable[[], str],
    team: Team,
) -> tuple[list[Group], list[Group], int]:
    """The groups to train on; these and those that were dropped; and the number of the next step's first group."""
    kept: list[Group] = []
    played: list[Group] = []
    number = run.next_group
    limit = number + config.games_per_step * MAX_OVERSAMPLING
    judged = any(game.parameters.reward_function for game in seating.games.values())
    expected = 1.0 if paid or judged else _played_for_one(config, run)
    while (missing := config.games_per_step - len(kept)) and number < limit:
        numbers = range(number, min(number + math.ceil(missing * expected), limit))
        requests: list[Request] = []
        for n in numbers:
            game, _, task = tasks[n]
            players = pool.seated(seating.games[game].parameters.seating, (seating.seed, run.step, n))
            ids = [f"train/{run.step}/{n}/{sample}" for sample in range(config.samples_per_game)]
            requests += [Request(episode_id, game, task, players, run.step) for episode_id in ids]
        store = Store(folder / f"groups-from-{number:05d}", keep="each" if paid else "whole")
        episodes = await collect(requests, seating.play, store, concurrency, TRIES, status=status, team=team)
        if team.leads:
            tasks_played = [request.task for request in requests]
            await judge_groups(seating.games, tasks_played, episodes, config.samples_per_game, store)
        episodes = await team.lead(episodes)  # one judgement for all
        samples = config.samples_per_game
        groups = [episodes[i : i + samples] for i in range(0, len(episodes), samples)]
        fine: list[bool] = []
        for group in groups:
            if sum(fine) < missing:
                fine.append(first_objection(group, config.filters) is None)
        fine = await team.lead(fine)  # a filter may draw
        for group, is_fine in zip(groups, fine, strict=False):  # the others are left over
            _check_alive(run, group)
            played.append(group)
            kept += [group] * is_fine
            number += 1
    return kept, played, number


def _played_for_one(config: TrainConfig, run: Run) -> float:
    """Groups that the last steps played for each one that they kept.

    A round of a few groups takes almost as long as a large one, so the first round is to be enough. What is left over of
    it was played for nothing, so this is not for paid services; a reward function may ask one.
    """
    recent = [metrics.get("groups_dropped", 0.0) for metrics in run.history[-RECENT_STEPS:]]
    return 1 + sum(recent) / (config.games_per_step * max(len(recent), 1))


def _check_alive(run: Run, group: Group) -> None:
    """Count a game's groups that failed as a whole, so that an environment which is down ends the training and does not
    slow it for ever. Until then the other games are trained."""
    last = group[-1]
    down = all(episode.status == "failed" for episode in group)
    run.failed[last.game] = run.failed.get(last.game, 0) + 1 if down else 0
    if run.failed[last.game] >= MAX_FAILED_GROUPS:
        raise UserError(
            f"The game {last.game} is down: all episodes of its last {MAX_FAILED_GROUPS} groups failed, the last one with "
            f"{last.error}. The same command continues the training once it answers."
        )


def sequences(config: TrainConfig, groups: Sequence[Group], state: dict[str, Any]) -> list[TrainedSequence]:
    """The sequences of all seats in which the policy had a turn, with their advantages.

    Args:
        state: of the advantage estimator; changed in place.
    """
    episodes = [(number, episode) for number, group in enumerate(groups) for episode in group]
    found = [
        (place, advantages.Played(number, episode, seat))
        for place, (number, episode) in enumerate(episodes)
        if episode.rewards  # skip those that ended without any
        for seat, trace in episode.traces.items()
        if any(trace.loss_mask)  # skip seats that never acted
    ]
    values = advantages.estimate(config, [played for _, played in found], state)
    return [
        TrainedSequence(played.episode.traces[played.seat], value, place)
        for (place, played), value in zip(found, values, strict=True)
    ]


async def update(
    config: TrainConfig,
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    optimizers: Sequence[torch.optim.Optimizer],
    sequences: Sequence[TrainedSequence],
    team: Team = ALONE,
) -> dict[str, float]:
    """Take `config.minibatches` optimiser steps on `sequences`, which `team` shares; returns metrics by name.

    `logprob_gap` is the largest difference between the rollout's log-probs and those recomputed here before
    the weights change. It shows that what is trained on is what was sampled.
    """
    totals = dict.fromkeys(("loss", "grad_norm", "clipped_fraction", "entropy", "logprob_gap"), 0.0)
    if config.kl_coefficient:
        totals["kl"] = 0.0
    checkpointing = config.gradient_checkpointing
    max_tokens = config.microbatch_tokens or fitting_tokens(model.config, config.trained_layers, checkpointing)
    sharing = not checkpointing  # which allows no cache
    if checkpointing:
        _checkpoint_layers(model, True)
    for i in range(config.minibatches):
        part = [s for s in sequences if s.episode % config.minibatches == i]
        if not part:
            continue
        lengths = torch.tensor([sum(s.trace.loss_mask) for s in part], dtype=torch.long)
        numbers = torch.tensor([s.episode for s in part], dtype=torch.long)
        shares = token_weights(lengths, numbers, config.average_over)
        weighted = list(zip(part, shares.tolist(), strict=True))
        model.zero_grad()
        if team.size > 1:  # a part for each
            max_tokens = min(max_tokens, -(-_tokens(weighted) // team.size))
        for micro in team.share(list(_microbatches(weighted, max_tokens, sharing)), _tokens):
            await asyncio.sleep(0)  # here Ctrl-C is heard
            batch = _Batch.of(micro, model.device, sharing)
            logprobs, entropy = batch.logprobs(model, config.temperature)
            losses = policy_loss(logprobs, batch.old_logprobs, batch.advantages, config.clip_low, config.clip_high)
            if reference is not None and config.kl_coefficient:
                with torch.no_grad():
                    reference_logprobs, _ = batch.logprobs(reference, config.temperature)
                kl = kl_estimate(logprobs, reference_logprobs, config.kl_estimator)
                losses = losses + config.kl_coefficient * kl
                totals["kl"] += float((kl.detach() * batch.weights).sum()) / config.minibatches
            loss = (losses * batch.weights).sum()
            loss.backward()
            with torch.no_grad():
                gap = (logprobs - batch.old_logprobs).abs()
                ratio = (logprobs - batch.old_logprobs).exp()
                outside = (ratio < 1 - config.clip_low) | (ratio > 1 + config.clip_high)
                totals["loss"] += float(loss.detach()) / config.minibatches
                totals["entropy"] += float((entropy * batch.weights).sum()) / config.minibatches
                totals["clipped_fraction"] += float((outside * batch.weights).sum()) / config.minibatches
                if i == 0 and gap.numel():
                    totals["logprob_gap"] = max(totals["logprob_gap"], float(gap.max()))
        team.add_gradients(model)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        totals["grad_norm"] += float(norm) / config.minibatches
        for optimizer in optimizers:
            optimizer.step()
    if checkpointing:
        _checkpoint_layers(model, False)
    parts = await team.gather(totals)
    return {
        name: value if name == "grad_norm" else (max if name == "logprob_gap" else sum)(part[name] for part in parts)
        for name, value in totals.items()
    }


def _checkpoint_layers(model: PreTrainedModel, on: bool) -> None:
    """Layers checkpoint in training mode alone. The modules in them stay in evaluation mode, without dropout."""
    if on:
        model.activation_checkpointing_enable()
    else:
        model.activation_checkpointing_disable()
    for layer in model.get_decoder().layers:
        layer.training = on


Weighted = tuple[TrainedSequence, float]
"""A sequence, and the weight of each of its tokens."""


def _tokens(micro: list[Weighted]) -> int:
    return sum(len(sequence.trace.token_ids) for sequence, _ in micro)


def _microbatches(sequences: Sequence[Weighted], max_tokens: int, sharing: bool) -> Iterator[list[Weighted]]:
    """Sequences of similar length together, at most `max_tokens` padded tokens (but at least one sequence) each.

    Args:
        sharing: a batch in which all begin with the same long prompt has its tokens once.
    """
    by_prompt: dict[tuple[int, ...], list[Weighted]] = {}
    for sequence in sequences:
        by_prompt.setdefault(_shared(sequence[0].trace) if sharing else (), []).append(sequence)
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


def _shared(trace: TokenTrace) -> tuple[int, ...]:
    """What a sequence may share with others: its prompt without the last token; nothing if that is short."""
    shared = trace.token_ids[: trace.loss_mask.index(1) - 1] if 1 in trace.loss_mask else []
    return tuple(shared) if len(shared) >= MIN_SHARED_TOKENS else ()


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
    def of(cls, weighted: Sequence[Weighted], device: torch.device, sharing: bool) -> "_Batch":
        sequences = [sequence for sequence, _ in weighted]
        beginnings = {_shared(s.trace) for s in sequences} if sharing and len(sequences) > 1 else {()}
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
        logits = model.lm_head(hidden[:, :-1][self.sampled[:, 1:]]).float() / temperature
        logprobs = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
        return logprobs.gather(1, self.ids[self.sampled][:, None])[:, 0], entropy
