"""GRPO on one machine: play groups of episodes, compare them, follow the gradient.

Group-relative policy optimisation (Shao et al. 2024, arXiv 2402.03300) with DAPO's parts (Yu et al. 2025,
arXiv 2503.14476) as options: a separate upper clip, token-level loss, groups without variance replaced; or
SPIRAL's moving baselines in place of groups (Liu et al. 2025, arXiv 2506.24119).
The episode is the unit of reward: every token that a seat sampled has the advantage of that seat.

A step is a function of the seed, the step's number and the weights before it. What is saved after each
step is all that the next one needs, so a killed run goes on with the numbers it would have had.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from slim_rl.config import TrainConfig
from slim_rl.engines.local import LocalEngine
from slim_rl.errors import UserError
from slim_rl.players.policy import TokenTrace
from slim_rl.rollout.collect import collect
from slim_rl.rollout.episode import Episode
from slim_rl.rollout.filters import Group, first_objection
from slim_rl.rollout.store import count_failures
from slim_rl.rollout.summary import describe
from slim_rl.rollout.table import Job, Table
from slim_rl.training.advantages import advantages
from slim_rl.training.checkpoint import load_state, save_state
from slim_rl.training.loss import kl_estimate, policy_loss, token_weights
from slim_rl.training.optimizer import muon_and_adamw
from slim_rl.training.pool import Pool, Results

TRIES = 3
"""So often an episode that fails is played before its group goes without it."""


class TrainedSequence(NamedTuple):
    """One seat's part of an episode."""

    trace: TokenTrace
    advantage: float
    episode: int
    """Its number in the batch, which the sequences of other seats share."""


@dataclass
class Run:
    """How far a training has come; all of it is in a checkpoint."""

    step: int = 0
    next_game: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    baselines: dict[str, float] = field(default_factory=dict)
    """See `role_advantages`."""
    results: Results = field(default_factory=dict)
    """Against the opponents of the pool."""


def train(
    config: TrainConfig,
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    games: Sequence[dict[str, Any]],
    seating: Callable[[int], tuple[str, ...]],
    make_table: Callable[[Mapping[str, LocalEngine]], Table],
    concurrency: int,
    folder: Path,
    on_step: Callable[[dict[str, float]], None] = lambda metrics: None,
) -> None:
    """Train `model` in place for `config.steps` steps, going on from what `folder` holds.

    Args:
        reference: the KL term's reference; None without one.
        games: lines of a games file; played in order, again from the start when they run out.
        seating: who sits where in the game of a number; `pool` is somebody out of the pool.
        make_table: given the engines of `policy` and of every opponent in the pool, by name.
        folder: gets `state.pt`; in `rollouts/` a folder of episode shards for each step; in `snapshots/` the
            frozen weights of every `config.snapshot_every` steps.
        on_step: hears of each step's metrics by name, those of the steps before an interruption too.
    """
    optimizers = _optimizers(config, model)
    engine = LocalEngine(model)
    # Averaging iterates: Polyak and Juditsky 1992, SIAM J. Control Optim. 30:4.
    averaged = copy.deepcopy(model) if config.averaging_decay else model
    run = _resume(folder / "state.pt", model, averaged, optimizers)
    pool = Pool(config, folder / "snapshots", averaged, run.step)
    table = make_table({"policy": engine, **pool.engines})
    for metrics in run.history:
        on_step(metrics)
    with tqdm(total=config.steps, initial=run.step, desc="training", unit="step") as bar:
        while run.step < config.steps:
            players = pool.seated(seating, table.seed, run.step, run.results)
            groups, played, run.next_game = _rollout(
                config, table, games, players, run, concurrency, folder / "rollouts"
            )
            for used in (engine, *pool.engines.values()):
                used.reset()
            failures = count_failures(folder / "rollouts" / f"step-{run.step:05d}")
            metrics = {
                **describe([e for group in groups for e in group]),
                "groups_dropped": len(played) // config.samples_per_game - len(groups),
                "failures": failures,
            }
            rate = config.learning_rate * min(1.0, (run.step + 1) / max(config.warmup_steps, 1))
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rate
            metrics |= update(config, model, reference, optimizers, sequences(config, groups, run.baselines))
            metrics |= {f"baseline.{role}": value for role, value in run.baselines.items()}
            if config.averaging_decay:
                _follow(averaged, model, config.averaging_decay)
            pool.note(played, run.results)
            run.step += 1
            run.history.append(metrics)
            if pool.add(run.step, averaged):
                table = make_table({"policy": engine, **pool.engines})
            if run.step % config.checkpoint_every == 0 or run.step == config.steps:
                saved = [optimizer.state_dict() for optimizer in optimizers]
                state = {"model": model.state_dict(), "optimizers": saved, "run": vars(run)}
                if config.averaging_decay:
                    state["averaged"] = averaged.state_dict()
                save_state(folder / "state.pt", state)
            on_step(metrics)
            bar.set_postfix_str(f"reward {metrics['reward']:.3f}")
            bar.update()
    model.load_state_dict(averaged.state_dict())


def _optimizers(config: TrainConfig, model: PreTrainedModel) -> list[torch.optim.Optimizer]:
    betas = (0.9, 0.95)
    if config.optimizer == "muon":
        return muon_and_adamw(model, config.learning_rate, config.weight_decay, betas)
    return [
        torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, betas=betas, weight_decay=config.weight_decay
        )
    ]


@torch.no_grad()
def _follow(averaged: PreTrainedModel, model: PreTrainedModel, decay: float) -> None:
    for mean, weight in zip(averaged.parameters(), model.parameters(), strict=True):
        mean.lerp_(weight, 1 - decay)


def _resume(
    path: Path,
    model: PreTrainedModel,
    averaged: PreTrainedModel,
    optimizers: Sequence[torch.optim.Optimizer],
) -> Run:
    state = load_state(path)
    if state is None:
        return Run()
    model.load_state_dict(state["model"])
    averaged.load_state_dict(state.get("averaged", state["model"]))
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return Run(**state["run"])


def _rollout(
    config: TrainConfig,
    table: Table,
    games: Sequence[dict[str, Any]],
    seating: Callable[[int], tuple[str, ...]],
    run: Run,
    concurrency: int,
    folder: Path,
) -> tuple[list[list[Episode]], list[Episode], int]:
    """The groups to train on, all episodes that were played for them, and the first game of the next step."""
    kept: list[list[Episode]] = []
    played: list[Episode] = []
    objections: list[str] = []
    game = run.next_game
    limit = game + math.ceil(config.games_per_step * config.max_oversampling)
    while len(kept) < config.games_per_step and game < limit:
        numbers = range(game, min(game + config.games_per_step - len(kept), limit))
        jobs = [job for number in numbers for job in _group(config, games, seating, run.step, number)]
        shards = folder / f"step-{run.step:05d}" / f"games-from-{game:05d}"
        # What a paid partner said is kept at once; without one, an interrupted run keeps its numbers.
        shard = None if table.status is None else len(jobs)
        episodes = collect(
            jobs,
            table.play,
            shards,
            concurrency,
            shard_episodes=shard,
            tries=TRIES,
            status=table.status,
            run=table.run,
        )
        played += episodes
        for i in range(0, len(episodes), config.samples_per_game):
            group = episodes[i : i + config.samples_per_game]
            objection = first_objection(group, config.filters)
            if objection is None:
                kept.append(group)
            else:
                objections.append(objection)
        game = numbers.stop
    if not kept:
        raise UserError(
            f"In training step {run.step} all {len(objections)} groups of episodes were dropped by the filter "
            f"{', '.join(sorted(set(objections)))}; nothing can be learnt from them. "
            "Check the base model or train.filters."
        )
    return kept, played, game


def _group(
    config: TrainConfig,
    games: Sequence[dict[str, Any]],
    seating: Callable[[int], tuple[str, ...]],
    step: int,
    number: int,
) -> list[Job]:
    game, players = games[number % len(games)], seating(number)
    samples = range(config.samples_per_game)
    return [Job(f"train/{step}/{number}/{sample}", game, players, step) for sample in samples]


def sequences(
    config: TrainConfig, groups: Sequence[Group], baselines: dict[str, float]
) -> list[TrainedSequence]:
    """The sequences of all seats in which the policy had a turn, with their advantages; `baselines` move on."""
    numbered = [(number, episode) for number, group in enumerate(groups) for episode in group]
    played = [
        (number, episode, seat)
        for number, episode in numbered
        for seat, trace in episode.traces.items()
        if any(trace.loss_mask)  # there is nothing to learn, nor to compare, of a game that was lost before
    ]
    places = {id(episode): place for place, (_, episode) in enumerate(numbered)}
    return [
        TrainedSequence(episode.traces[seat], value, places[id(episode)])
        for (_, episode, seat), value in zip(played, advantages(config, played, baselines), strict=True)
    ]


def update(
    config: TrainConfig,
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    optimizers: Sequence[torch.optim.Optimizer],
    sequences: Sequence[TrainedSequence],
) -> dict[str, float]:
    """Take `config.minibatches` optimiser steps on `sequences`; returns metrics by name.

    `logprob_gap` is the largest difference between the rollout's log-probs and those recomputed here
    before the weights change: whether what is trained on is what was sampled.
    """
    totals: dict[str, float] = {
        "loss": 0.0,
        "grad_norm": 0.0,
        "clipped_fraction": 0.0,
        "entropy": 0.0,
        "logprob_gap": 0.0,
    }
    if config.kl_coefficient:
        totals["kl"] = 0.0
    for i in range(config.minibatches):
        part = [s for s in sequences if s.episode % config.minibatches == i]
        lengths = torch.tensor([sum(s.trace.loss_mask) for s in part], dtype=torch.long)
        numbers = torch.tensor([s.episode for s in part], dtype=torch.long)
        shares = token_weights(lengths, numbers, config.average_over)
        weighted = list(zip(part, shares.tolist(), strict=True))
        model.zero_grad()
        for micro in _microbatches(weighted, config.microbatch_tokens):
            batch = _Batch.of(micro, model.device)
            logprobs, entropy = batch.logprobs(model, config.temperature, config.entropy_coefficient > 0)
            losses = policy_loss(
                logprobs, batch.old_logprobs, batch.advantages, config.clip_low, config.clip_high
            )
            if reference is not None and config.kl_coefficient:
                with torch.no_grad():
                    reference_logprobs, _ = batch.logprobs(reference, config.temperature)
                kl = kl_estimate(logprobs, reference_logprobs, config.kl_estimator)
                losses = losses + config.kl_coefficient * kl
                totals["kl"] += float((kl.detach() * batch.weights).sum()) / config.minibatches
            if config.entropy_coefficient:
                losses = losses - config.entropy_coefficient * entropy
            loss = (losses * batch.weights).sum()
            loss.backward()
            with torch.no_grad():
                gap = (logprobs - batch.old_logprobs).abs()
                ratio = (logprobs - batch.old_logprobs).exp()
                outside = (ratio < 1 - config.clip_low) | (ratio > 1 + config.clip_high)
                totals["loss"] += float(loss.detach()) / config.minibatches
                totals["entropy"] += float((entropy * batch.weights).sum()) / config.minibatches
                totals["clipped_fraction"] += float((outside * batch.weights).sum()) / config.minibatches
                if i == 0:
                    totals["logprob_gap"] = max(totals["logprob_gap"], float(gap.max()))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        totals["grad_norm"] += float(norm) / config.minibatches
        for optimizer in optimizers:
            optimizer.step()
    return totals


Weighted = tuple[TrainedSequence, float]
"""A sequence, and what each of its tokens counts."""


def _microbatches(sequences: Sequence[Weighted], max_tokens: int) -> Iterator[list[Weighted]]:
    """Sequences of similar length together, at most `max_tokens` padded tokens (but at least one) each."""
    batch: list[Weighted] = []
    for sequence in sorted(sequences, key=lambda s: len(s[0].trace.token_ids), reverse=True):
        longest = len((batch or [sequence])[0][0].trace.token_ids)
        if batch and (len(batch) + 1) * longest > max_tokens:
            yield batch
            batch = []
        batch.append(sequence)
    if batch:
        yield batch


class _Batch(NamedTuple):
    """Sequences as tensors; what belongs to single tokens has one entry a sampled token, row by row."""

    ids: torch.Tensor
    """(sequences, length) int64, padded at the end, where causal attention does not look."""
    sampled: torch.Tensor
    """(sequences, length) bool."""
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, weighted: Sequence[Weighted], device: torch.device) -> "_Batch":
        sequences = [sequence for sequence, _ in weighted]
        length = max(len(s.trace.token_ids) for s in sequences)
        ids = torch.zeros(len(sequences), length, dtype=torch.long)
        sampled = torch.zeros(len(sequences), length, dtype=torch.bool)
        old = torch.zeros(len(sequences), length)
        for i, (trace, *_) in enumerate(sequences):
            ids[i, : len(trace.token_ids)] = torch.tensor(trace.token_ids)
            sampled[i, : len(trace.token_ids)] = torch.tensor(trace.loss_mask, dtype=torch.bool)
            old[i, : len(trace.token_ids)] = torch.tensor(trace.logprobs)
        rows = torch.arange(len(sequences))[:, None].expand_as(ids)[sampled]
        advantages = torch.tensor([s.advantage for s in sequences])[rows]
        weights = torch.tensor([weight for _, weight in weighted])[rows]
        return cls(*(tensor.to(device) for tensor in (ids, sampled, old[sampled], advantages, weights)))

    def logprobs(
        self, model: PreTrainedModel, temperature: float, entropy_is_trained: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-prob of each sampled token under `model`, given all before it, and the entropy of the distribution
        that it was drawn from, both (sampled tokens,) float32."""
        hidden = model.get_decoder()(input_ids=self.ids, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, :-1][self.sampled[:, 1:]]).float() / temperature
        logprobs = torch.log_softmax(logits, dim=-1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_is_trained):
            entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
        return logprobs.gather(1, self.ids[self.sampled][:, None])[:, 0], entropy
