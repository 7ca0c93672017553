"""Benchmarks during training: held-out tasks that the policy plays at intervals, and what is logged of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from slim_rl.core.episode import Episode
from slim_rl.engines.engine import Engine
from slim_rl.games import NamedGame, load_games
from slim_rl.rollout.collect import TRIES, collect
from slim_rl.rollout.seating import PlayerMaker, PolicyRules, Request, Seating
from slim_rl.rollout.store import Store
from slim_rl.rollout.summary import pass_at_k
from slim_rl.runtime.team import ALONE, Team
from slim_rl.training.config import BenchmarkConfig


@dataclass(frozen=True)
class Benchmarks:
    """Plays benchmarks and keeps their episodes."""

    benchmarks: Mapping[str, BenchmarkConfig]
    every_steps: int
    seed: int
    rules: Callable[[float], PolicyRules]
    """How the policy takes its turns at a temperature."""
    others: Mapping[str, PlayerMaker]
    """Players that need a model, besides the policy, by name."""
    concurrency: int
    folder: Path
    """Gets the episodes, `NAME/step-00000/*.parquet`. One evaluation appears as a whole, so that a killed one is played
    again with the same numbers."""
    team: Team = ALONE
    """Shares the episodes."""

    @cached_property
    def _games(self) -> dict[str, NamedGame]:
        return {name: load_games({b.game: b.parameters}, self.seed)[b.game] for name, b in self.benchmarks.items()}

    async def at(self, step: int, engine: Engine, last: bool = False) -> dict[str, float]:
        """The metrics of all benchmarks; empty between intervals, unless it is the `last` evaluation."""
        if step % self.every_steps and not last:
            return {}
        metrics: dict[str, float] = {}
        for name, benchmark in self.benchmarks.items():
            game = self._games[name]
            episodes = await self._play(name, benchmark, game, step, engine)
            seats = {seat for seat, who in episodes[0].seating.items() if who == "policy"}
            passed = scores(episodes, seats, game.taskset.pass_reward)
            metrics |= {f"{name}/{metric}": value for metric, value in passed.items()}
        return metrics

    async def _play(
        self, name: str, benchmark: BenchmarkConfig, game: NamedGame, step: int, engine: Engine
    ) -> list[Episode]:
        policy = self.rules(benchmark.temperature).maker(engine, trained=False)
        seating = Seating({game.name: game}, {**self.others, "policy": policy}, self.seed)
        requests = [
            Request(f"{name}/{task.game_id}#{n}", game.name, task, game.parameters.seating, step, series=name)
            for task in game.taskset.tasks("evaluate", benchmark.tasks)
            for n in range(benchmark.samples)
        ]
        store = Store(self.folder / name / f"step-{step:05d}", keep="whole")
        return await collect(requests, seating.play, store, self.concurrency, TRIES, name, team=self.team)


def scores(episodes: Sequence[Episode], seats: set[str], pass_reward: float) -> dict[str, float]:
    """`pass_rate` of the episodes that did not fail, with its 95% Wilson interval over tasks, `pass_rate_low` and
    `pass_rate_high`; `pass_at_K` for each power of 2 up to the fewest samples of a task; `problems_passed`, the tasks
    that at least one sample solved; `problems`; the mean `reward` of `seats`; and `failed` episodes.
    """
    from statsmodels.stats.proportion import proportion_confint  # a second, and few trainings have benchmarks

    samples: dict[str, list[float]] = {}
    for episode in episodes:
        if episode.rewards:
            reward = sum(episode.rewards[seat] for seat in seats) / len(seats)
            samples.setdefault(episode.game_id, []).append(reward)
    failed = float(sum(not episode.rewards for episode in episodes))
    if not samples:
        return {"failed": failed}
    counts = [(len(rewards), sum(r >= pass_reward - 1e-9 for r in rewards)) for rewards in samples.values()]
    rate = sum(passed / size for size, passed in counts) / len(counts)
    low, high = proportion_confint(rate * len(counts), len(counts), method="wilson")
    fewest = min(size for size, _ in counts)
    return {
        "pass_rate": rate,
        "pass_rate_low": float(low),
        "pass_rate_high": float(high),
        **{
            f"pass_at_{k}": sum(pass_at_k(size, passed, k) for size, passed in counts) / len(counts)
            for k in (2**i for i in range(fewest.bit_length()))
        },
        "problems_passed": float(sum(passed > 0 for _, passed in counts)),
        "problems": float(len(counts)),
        "reward": sum(sum(rewards) / len(rewards) for rewards in samples.values()) / len(samples),
        "failed": failed,
    }
