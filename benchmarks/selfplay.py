"""Self-play on the laptop, with several seeds: the source of the figures in docs/selfplay.md.

    python -m benchmarks.selfplay tictactoe    # with and without role baselines
    python -m benchmarks.selfplay kuhn
    python -m benchmarks.selfplay selfplay     # the matching game

Each run is the pipeline with the profile of that name, in a folder of its own below .work/selfplay/. A
finished run is not repeated. Two run at a time, on a core each.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from matplotlib.figure import Figure

from slim_rl.analysis.figures import LINES, WIDTH, legend, save, whole_numbers, with_style
from slim_rl.analysis.titles import title
from stages.workspace import composed

ROOT, RUNS = Path(__file__).parents[1], Path(".work/selfplay")
VARIANTS = {
    "tictactoe": {"role baselines": {}, "no baseline": {"advantage": "benchmarks.rewards:estimate"}},
    "kuhn": {"self-play": {}},
    "selfplay": {"self-play": {}},
}
FIGURES = {"tictactoe": "learning", "kuhn": "exactly", "selfplay": "training"}
COLUMNS = {
    "exactly": {"exploitability": "exploitability", "value_first": "value, first seat"},
    "training": {"reward": "reward", "useful_cells": "useful cells\na game"},
}
SHARED, OWN = ("games", "base_model"), ("train", "evaluate", "analyze")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", choices=VARIANTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    with ThreadPoolExecutor(given.at_once) as pool:
        list(pool.map(lambda seed: prepare(given.profile, seed), given.seeds))
        jobs = [(variant, seed) for seed in given.seeds for variant in VARIANTS[given.profile]]
        list(pool.map(lambda job: run(given.profile, *job), jobs))
    name = FIGURES[given.profile]
    tables = {
        variant: [
            pd.read_csv(folder(given.profile, variant, seed) / f"reports/data/{name}.csv") for seed in given.seeds
        ]
        for variant in VARIANTS[given.profile]
    }
    save(seeds_figure(name, tables), ROOT / "docs/figures", f"{given.profile}-{name}")
    for variant, seed in jobs:
        place = folder(given.profile, variant, seed)
        print(f"\n{given.profile}, {variant}, seed {seed}: {(place / 'seconds').read_text().strip()}")
        print((place / "reports/report.md").read_text())


@with_style
def seeds_figure(name: str, runs: Mapping[str, Sequence[pd.DataFrame]]) -> Figure:
    """The table `name` of several seeds of several variants, a thin line per seed."""
    if name in COLUMNS:
        panels = [(column, lambda t: t, label) for column, label in COLUMNS[name].items()]
    else:
        one = next(iter(runs.values()))[0]
        pairs = one[["opponent", "seat"]].drop_duplicates().itertuples(index=False)
        panels = [
            (
                "reward",
                lambda t, o=o, s=s: t[(t["opponent"] == o) & (t["seat"] == s)],
                f"reward, {s},\n{title(o).lower()}",
            )
            for o, s in pairs
        ]
    figure = Figure((WIDTH, 0.6 + 1.5 * len(panels)), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (column, chosen, label) in zip(all_axes, panels, strict=True):
        for (variant, tables), (colour, line) in zip(runs.items(), LINES, strict=False):
            for number, table in enumerate(tables):
                rows, name = chosen(table), "" if number else variant
                axes.plot(rows["step"], rows[column], color=colour, linestyle=line, linewidth=1, label=name)
        axes.set(ylabel=label)
    all_axes[-1].set(xlabel="training step")
    whole_numbers(all_axes[-1])
    legend(all_axes[0], 2)
    return figure


def folder(profile: str, variant: str, seed: int) -> Path:
    return RUNS / f"{profile}-{variant.replace(' ', '-')}-{seed}"


def prepare(profile: str, seed: int) -> None:
    """Run the stages that all variants of a seed share."""
    parameters = composed(yaml.safe_load((ROOT / "params.yaml").read_text()), profile)
    make(folder(profile, "base", seed), {**parameters, "seed": seed, "threads": 1, "processes": 1}, SHARED)


def run(profile: str, variant: str, seed: int) -> None:
    base, own = folder(profile, "base", seed), folder(profile, variant, seed)
    parameters = yaml.safe_load((base / "params.yaml").read_text())
    parameters["train"] |= VARIANTS[profile][variant]
    for part in ("data/games", "models/base"):
        if not (own / part).exists():
            shutil.copytree(base / part, own / part)
    make(own, parameters, OWN)


def make(place: Path, parameters: Mapping[str, Any], stages: Sequence[str]) -> None:
    """Run the stages in `place`, and write how long each took, once."""
    if (place / "seconds").exists():
        if yaml.safe_load((place / "params.yaml").read_text()) != parameters:
            sys.exit(f"error: {place} holds a run with other parameters; move it away or remove it")
        return
    (place / "data").mkdir(parents=True, exist_ok=True)
    if not (place / "data/human").exists():
        (place / "data/human").symlink_to(ROOT / "data/human")
    (place / "params.yaml").write_text(yaml.safe_dump(parameters))
    took = []
    for stage in stages:
        started = time.monotonic()
        with (place / f"{stage}.log").open("w") as log:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            command = [sys.executable, "-m", f"stages.{stage}"]
            subprocess.run(command, cwd=place, env=environment, stdout=log, stderr=log, check=True)
        took.append(f"{stage} {time.monotonic() - started:.0f} s")
        print(f"{place.name}: {took[-1]}", flush=True)
    (place / "seconds").write_text(", ".join(took))


if __name__ == "__main__":
    main()
