"""Self-play on the laptop, with several seeds: what the figures of docs/selfplay.md come from.

    python -m benchmarks.selfplay tictactoe    # with and without role baselines
    python -m benchmarks.selfplay kuhn
    python -m benchmarks.selfplay selfplay     # the matching game

Each run is the pipeline on conf/PROFILE.yaml in a folder of its own below .work/selfplay/; runs that are there are
not made again. Two at a time, a core each.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import yaml

from slim_rl.analysis.figures import save, seeds_figure

ROOT, RUNS = Path(__file__).parents[1], Path(".work/selfplay")
VARIANTS = {
    "tictactoe": {"role baselines": {}, "no baseline": {"advantage": "return"}},
    "kuhn": {"self-play": {}},
    "selfplay": {"self-play": {}},
}
FIGURES = {"tictactoe": ["learning"], "kuhn": ["exactly"], "selfplay": ["training"]}
SHARED, OWN = ("games", "base_model"), ("train", "evaluate", "analyze")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", choices=VARIANTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    with ThreadPoolExecutor(given.at_once) as pool:
        list(pool.map(lambda seed: prepare(given.profile, seed), given.seeds))
        jobs = [(variant, seed) for seed in given.seeds for variant in VARIANTS[given.profile]]
        list(pool.map(lambda job: run(given.profile, *job), jobs))
    for name in FIGURES[given.profile]:
        tables = {
            variant: [
                pd.read_csv(folder(given.profile, variant, seed) / f"reports/data/{name}.csv")
                for seed in given.seeds
            ]
            for variant in VARIANTS[given.profile]
        }
        save(seeds_figure(name, tables), ROOT / "docs/figures", f"{given.profile}-{name}")
    for variant, seed in jobs:
        seconds = (folder(given.profile, variant, seed) / "seconds").read_text()
        print(f"\n{given.profile}, {variant}, seed {seed}: {seconds.strip()}")
        print((folder(given.profile, variant, seed) / "reports/report.md").read_text())


def folder(profile: str, variant: str, seed: int) -> Path:
    return RUNS / f"{profile}-{variant.replace(' ', '-')}-{seed}"


def prepare(profile: str, seed: int) -> None:
    """What all variants of a seed begin with."""
    base = folder(profile, "base", seed)
    parameters = yaml.safe_load((ROOT / f"conf/{profile}.yaml").read_text())
    make(base, {**parameters, "seed": seed, "threads": 1}, SHARED)


def run(profile: str, variant: str, seed: int) -> None:
    base, own = folder(profile, "base", seed), folder(profile, variant, seed)
    parameters = yaml.safe_load((base / "params.yaml").read_text())
    parameters["train"] |= VARIANTS[profile][variant]
    for part in ("data/games", "models/base"):
        if not (own / part).exists():
            shutil.copytree(base / part, own / part)
    make(own, parameters, OWN)


def make(place: Path, parameters: dict, stages: tuple[str, ...]) -> None:
    """Run the stages in `place`, and write down how long each took, once."""
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
