"""GRPO: play groups of episodes, compare them, follow the gradient.

Group-relative policy optimisation (Shao et al. 2024, arXiv 2402.03300) with options from DAPO (Yu et al. 2025, arXiv
2503.14476): a separate upper clip, token-level loss, groups without variance replaced. The episode is the unit of
reward; `training/advantages` turns rewards into an advantage for each sequence or token.

Where every group of a step is dropped there is nothing to learn from, and the step ends without an update.

Seed, step number and weights determine a step. Only the number of groups played at once also depends on earlier steps.
What is saved after a step is all that the next one needs, so a killed run goes on with the numbers it would have had.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from slim_rl.core.errors import Diverged, UserError
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
from slim_rl.training.backend import Backend
from slim_rl.training.benchmarks import Benchmarks
from slim_rl.training.checkpoint import load_state, save_state
from slim_rl.training.config import TrainConfig
from slim_rl.training.update import TrainedSequence

MAX_OVERSAMPLING = 2
"""A step plays at most this multiple of `games_per_step` groups when filters drop some."""

RECENT_STEPS = 8
"""How many groups the filters will drop is guessed from so many steps."""

MAX_FAILED_GROUPS = 10
"""Training ends after this many groups of one game in a row in which every episode failed."""


@dataclass(frozen=True)
class Rollouts:
    """How the groups of a step are played."""

    tasks: Mixture
    """The task of each group, by the group's number."""
    seating: Seating
    concurrency: int
    paid: bool = False
    """Whether an episode may cost money. Then it is kept as soon as it ends, and none is played that a filter may make
    needless. Otherwise a killed run plays its last batch of groups again, so that it gets the numbers of an uninterrupted
    run."""
    status: Callable[[], str] = str
    """Progress-bar suffix."""


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


class Trainer:
    """A training run: it goes on from what `folder` holds.

    Args:
        backend: has the weights, and samples and trains them.
        folder: gets `state.pt`; in `rollouts/` a folder of shards for each step, with all episodes that it played; in
            `snapshots/` a checkpoint of every `config.snapshot_every` steps.
        benchmarks: their metrics are logged with those of the step that follows, and the last ones by themselves.
        team: shares each step's episodes.
        clock: seconds, for the time between checkpoints and what a step takes.

    Raises:
        UserError: the advantage estimator does not exist.
    """

    def __init__(
        self,
        config: TrainConfig,
        backend: Backend,
        rollouts: Rollouts,
        folder: Path,
        benchmarks: Benchmarks | None = None,
        team: Team = ALONE,
        clock: Callable[[], float] = time.monotonic,
    ):
        advantages.find_estimator(config.advantage)
        self.config, self.backend, self.rollouts, self.folder = config, backend, rollouts, folder
        self.benchmarks, self.team, self.clock = benchmarks, team, clock
        self.run, self.saved_at = Run(), clock()

    async def train(self, on_step: Callable[[dict[str, float]], None] = lambda metrics: None) -> None:
        """Train for `config.steps` steps. `on_step` gets the metrics of each, also of those before an interruption.

        Raises:
            UserError: a filter does not exist, a game's environment is down, or more steps were taken already.
            Diverged: a log-prob, the gradient or a weight is not finite.
        """
        await self._resume()
        config, run = self.config, self.run
        for metrics in run.history:
            on_step(metrics)
        await self._snapshot()
        hidden = not self.team.leads
        with tqdm(total=config.steps, initial=run.step, desc="training", unit="step", disable=hidden) as bar:
            while run.step < config.steps:
                try:
                    metrics = await self._step()
                except Diverged as error:
                    raise Diverged(
                        f"Step {run.step + 1} of the training ended: {error}. The last state on disk is from before; the same "
                        f"command with a train.learning_rate smaller than {config.learning_rate:g} goes on from it."
                    ) from None
                run.step += 1
                run.history.append(metrics)
                await self._snapshot()
                if run.step == config.steps or self.clock() - self.saved_at >= 60 * config.checkpoint_minutes:
                    await self._save()
                on_step(metrics)
                reward = f"reward {metrics.get('reward', math.nan):.3f}"
                bar.set_postfix_str(", ".join(filter(None, [reward, self.rollouts.status()])))
                bar.update()
        if self.benchmarks and len(run.history) == config.steps:
            run.history.append(await self._benchmark(last=True))
            await self._save()
            on_step(run.history[-1])
        self.backend.swap_averages()

    async def _resume(self) -> None:
        state = load_state(self.folder / "state.pt")
        if state:
            self.run = Run(**state.pop("run"))
        if self.run.step > self.config.steps:
            raise UserError(
                f"train.steps is {self.config.steps}, but the run in {self.folder} has taken {self.run.step} steps already, "
                "and only its last state is kept. Give so many or more."
            )
        await self.backend.load(state, ended=self.run.step >= self.config.steps and not self.benchmarks)

    async def _step(self) -> dict[str, float]:
        """Play groups, compare their episodes, follow the gradient; returns metrics by name."""
        config, run = self.config, self.run
        benchmarked = await self._benchmark()
        rollouts = self.folder / "rollouts" / f"step-{run.step:05d}"
        started = self.clock()
        groups, played = await self._play_groups(rollouts)
        ended = self.clock()
        metrics = {
            **describe([episode for group in played for episode in group]),
            "groups_dropped": len(played) - len(groups),
            "failures": count_failures(rollouts),
            "updated": float(bool(groups)),
            **benchmarked,
        }
        trained = sequences(config, groups, run.estimator) if groups else []
        rate = config.rate(run.step)
        metrics |= {"learning_rate": rate, **await self.backend.update(trained, rate)}
        traces = [trace for group in played for episode in group for trace in episode.traces.values()]
        metrics |= {
            "tokens_sampled": sum(map(sum, (trace.loss_mask for trace in traces))),
            "tokens_trained": sum(len(one.trace.token_ids) for one in trained),
            "seconds_playing": ended - started,
            "seconds_updating": self.clock() - ended,
        }
        if groups:
            metrics |= advantages.metrics(run.estimator)
        return metrics

    async def _play_groups(self, folder: Path) -> tuple[list[Group], list[Group]]:
        """The groups to train on; and these with those that were dropped."""
        config, run, seating, team = self.config, self.run, self.rollouts.seating, self.team
        samples = config.samples_per_game
        accepted: list[Group] = []
        played: list[Group] = []
        limit = run.next_group + config.games_per_step * MAX_OVERSAMPLING
        expected = self._played_for_one()
        while (missing := config.games_per_step - len(accepted)) and run.next_group < limit:
            first = run.next_group
            requests = [
                request
                for number in range(first, min(first + math.ceil(missing * expected), limit))
                for request in self._requests(number)
            ]
            store = Store(folder / f"groups-from-{first:05d}", keep="each" if self.rollouts.paid else "whole")
            episodes = await collect(requests, seating.play, store, self.rollouts.concurrency, TRIES, team=team)
            if team.leads:
                await judge_groups(seating.games, [request.task for request in requests], episodes, samples, store)
            episodes = await team.lead(episodes)  # one judgement for all
            groups = [episodes[i : i + samples] for i in range(0, len(episodes), samples)]
            accepts: list[bool] = []
            for group in groups:
                if sum(accepts) < missing:
                    accepts.append(first_objection(group, config.filters) is None)
            accepts = await team.lead(accepts)  # a filter may draw
            for group, is_accepted in zip(groups, accepts, strict=False):  # the others are left over
                self._check_alive(group)
                played.append(group)
                accepted += [group] * is_accepted
                run.next_group += 1
        return accepted, played

    def _requests(self, number: int) -> list[Request]:
        """The episodes of a group."""
        name, task = self.rollouts.tasks[number]
        players, step = self.rollouts.seating.games[name].parameters.seating, self.run.step
        ids = [f"train/{step}/{number}/{sample}" for sample in range(self.config.samples_per_game)]
        return [Request(episode_id, name, task, players, step) for episode_id in ids]

    def _played_for_one(self) -> float:
        """Groups that the last steps played for each one that they trained on.

        A round of a few groups takes almost as long as a large one, so the first round is to be enough. What is left over
        of it was played for nothing, so this is not for paid services; a reward function may ask one.
        """
        if self.rollouts.paid or any(g.parameters.reward_function for g in self.rollouts.seating.games.values()):
            return 1.0
        recent = [metrics.get("groups_dropped", 0.0) for metrics in self.run.history[-RECENT_STEPS:]]
        return 1 + sum(recent) / (self.config.games_per_step * max(len(recent), 1))

    def _check_alive(self, group: Group) -> None:
        """Count a game's groups that failed as a whole, so that an environment which is down ends the training and does
        not slow it for ever. Until then the other games are trained."""
        failed, last = self.run.failed, group[-1]
        down = all(episode.status == "failed" for episode in group)
        failed[last.game] = failed.get(last.game, 0) + 1 if down else 0
        if failed[last.game] >= MAX_FAILED_GROUPS:
            raise UserError(
                f"The game {last.game} is down: all episodes of its last {MAX_FAILED_GROUPS} groups failed, the last one "
                f"with {last.error}. The same command continues the training once it answers."
            )

    async def _benchmark(self, last: bool = False) -> dict[str, float]:
        if self.benchmarks is None:
            return {}
        with self._averaged():
            return await self.benchmarks.at(self.run.step, self.backend.engine, last)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """In here the weights are their averages, if those are kept."""
        self.backend.swap_averages()
        try:
            yield
        finally:
            self.backend.swap_averages()

    async def _snapshot(self) -> None:
        """Keep a frozen copy of the policy, if one is due."""
        every = self.config.snapshot_every
        if every and self.run.step % every == 0 and self.team.leads:
            with self._averaged():
                await self.backend.export(self.folder / "snapshots" / f"step-{self.run.step:05d}")

    async def _save(self) -> None:
        if not self.team.leads:
            return
        save_state(self.folder / "state.pt", {**await self.backend.save(), "run": vars(self.run)})
        self.saved_at = self.clock()


def sequences(config: TrainConfig, groups: Sequence[Group], state: dict[str, Any]) -> list[TrainedSequence]:
    """The sequences of all seats in which the policy had a turn, with their advantages.

    Args:
        state: of the advantage estimator; changed in place.
    """
    episodes = [(number, episode) for number, group in enumerate(groups) for episode in group]
    played = [
        (place, advantages.Played(number, episode, seat))
        for place, (number, episode) in enumerate(episodes)
        if episode.rewards  # skip those that ended without any
        for seat, trace in episode.traces.items()
        if any(trace.loss_mask)  # skip seats that never acted
    ]
    values = advantages.estimate(config, [sequence for _, sequence in played], state)
    return [
        TrainedSequence(sequence.episode.traces[sequence.seat], value, place)
        for (place, sequence), value in zip(played, values, strict=True)
    ]
