"""How often the report's 95% intervals cover the truth, in simulated runs with a known truth.

    python -m benchmarks.intervals [--runs 2000]

`mean`: 4 episodes on each of 100 boards that differ, rewards skewed towards 1. `within-game correlation`: groups of 8 on
60 boards, a truth of .3 under boards that pull the other way. `slope`: 80 steps whose noise is correlated from step to
step (AR(1) of .3); the other slopes show where the block bootstrap falls short. `share`: 4 episodes of each of 40 tasks,
some much harder than others.
"""

import argparse
from collections.abc import Callable

import numpy as np
import pandas as pd
from tqdm import tqdm

from slim_rl.analysis.statistics import Estimate, Share, correlation, estimate, share, trend

Interval = Estimate | Share


def mean(rng: np.random.Generator) -> tuple[Interval, float]:
    boards = np.repeat(rng.beta(8, 2, 100), 4)
    rewards = boards + rng.normal(0, 0.05, 400)
    return estimate(pd.DataFrame({"game_id": np.repeat(np.arange(100), 4), "x": rewards}), "x"), 0.8


def within_game(rng: np.random.Generator) -> tuple[Interval, float]:
    truth, games, samples = 0.3, 60, 8
    ease = np.repeat(rng.normal(0, 2, games), samples)
    x = rng.normal(size=games * samples)
    y = truth * x + np.sqrt(1 - truth**2) * rng.normal(size=games * samples)
    rows = pd.DataFrame({"game_id": np.repeat(np.arange(games), samples), "x": x + ease, "y": y - ease})
    return correlation(rows, "x", "y", within=["game_id"]), truth


def slope(rng: np.random.Generator, steps: int = 80, autocorrelation: float = 0.3) -> tuple[Interval, float]:
    truth, noise = 0.001, np.zeros(steps + 50)
    for step in range(1, len(noise)):
        noise[step] = autocorrelation * noise[step - 1] + rng.normal(0, 0.02)
    rows = pd.DataFrame({"step": np.arange(steps), "x": 0.8 + truth * np.arange(steps) + noise[50:]})
    return trend(rows, "x").slope, truth


def share_of_tasks(rng: np.random.Generator) -> tuple[Interval, float]:
    games, passed = np.repeat(np.arange(40), 4), rng.random(160) < np.repeat(rng.beta(0.5, 2, 40), 4)
    return share(pd.DataFrame({"game_id": games, "x": passed.astype(float)}), "x"), 0.2


SIMULATIONS: dict[str, Callable[[np.random.Generator], tuple[Interval, float]]] = {
    "mean": mean,
    "share": share_of_tasks,
    "within-game correlation": within_game,
    "slope": slope,
    "slope, independent steps": lambda rng: slope(rng, autocorrelation=0.0),
    "slope, AR(1) of .5": lambda rng: slope(rng, autocorrelation=0.5),
    "slope, AR(1) of .8": lambda rng: slope(rng, autocorrelation=0.8),
    "slope, 40 steps": lambda rng: slope(rng, steps=40),
}


def coverage(what: str, runs: int, seed: int) -> float:
    """The share of `runs` in which the interval covers the truth."""
    covered = 0
    for run in range(runs):
        found, truth = SIMULATIONS[what](np.random.default_rng([seed, run]))
        covered += found.low <= truth <= found.high
    return covered / runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    for what in tqdm(SIMULATIONS, unit="simulation"):
        rate = coverage(what, runs, seed=1)
        error = (rate * (1 - rate) / runs) ** 0.5
        tqdm.write(f"{what}: covered in {rate:.1%} of {runs} runs (standard error {error:.1%})")


if __name__ == "__main__":
    main()
