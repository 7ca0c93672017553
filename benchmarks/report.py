"""The whole `analyze` stage on simulated runs of 100,000 and 1,000,000 episodes: time and memory.

    python -m benchmarks.report [--episodes 100000 1000000] [--folder FOLDER]

Scripted players play real games on 1,024 boards, 16 episodes each with different numbers of questions. The run on disk
repeats these episodes on as many boards as there are groups, under new names and with traces of tokens, in shards of 256:
nine tenths are training of 200 steps, the rest held-out games of base, trained and Bayesian player and the arms of the
transplant. The stage runs as `dvc repro` runs it; its memory is the largest sum over all its processes, sampled ten
times a second.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from slim_rl.core.episode import Episode, TokenTrace
from slim_rl.games import game_parameters, load_games
from slim_rl.rollout.seating import Request, Seating
from slim_rl.rollout.shards import SCHEMA, write_shard
from slim_rl.studies.asking.transplant import ARMS

ROOT = Path(__file__).parents[1]
BOARDS, SAMPLES, STEPS, SHARD = 1024, 16, 200, 256
TRACE_TOKENS, SAMPLED = 150, 30


def played(folder: Path) -> pa.Table:
    """BOARDS x SAMPLES real episodes, group after group."""
    [game] = load_games({"matching": game_parameters("matching", {})}, seed=0).values()
    seating = Seating({game.name: game}, {}, seed=0)

    async def play() -> list[Episode]:
        return [
            await seating.play(Request(f"{task.game_id}/{n}", game.name, task, (f"asks-{n % 8}-random", "scripted")))
            for task in game.taskset.tasks("train", BOARDS)
            for n in range(SAMPLES)
        ]  # fmt: skip

    episodes = asyncio.run(play())
    mask = [1] * SAMPLED + [0] * (TRACE_TOKENS - SAMPLED)
    for episode in episodes:
        first = next(iter(episode.seating))
        episode.traces = {first: TokenTrace(list(range(TRACE_TOKENS)), mask, [-0.5 * m for m in mask])}
    write_shard(folder / "played.parquet", episodes)
    return pq.read_table(folder / "played.parquet")


def write_run(folder: Path, episodes: int, source: pa.Table) -> None:
    """Shards of a run with about `episodes` episodes."""
    tenth = episodes // 10
    write_part(folder / "data/rollouts", "policy", 9 * tenth, STEPS, source)
    series, held_out = folder / "data/episodes/matching", tenth // 4
    for player in ("base", "trained", "bayes"):
        write_part(series / "held-out" / player, player, held_out, 1, source)
    for name in ARMS[2:]:
        model, _, arm = name.partition("-")
        write_part(series / f"transplant/{name}", model, held_out // len(ARMS), 1, source, arm)
    write_part(series / "human-boards/humans", "humans", 100, 1, source)


def write_part(folder: Path, player: str, episodes: int, steps: int, source: pa.Table, arm: str = "") -> None:
    """Shards of `player`'s episodes, as if it had played them in the first seat."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number, start in enumerate(tqdm(range(0, episodes, SHARD), desc=folder.name, leave=False)):
        places = np.arange(start, min(start + SHARD, episodes))
        groups = places // SAMPLES
        rows = source.take(rng.permutation(BOARDS)[groups % BOARDS] * SAMPLES + places % SAMPLES)
        seatings = [[(seat, player if seat == first else who) for seat, who in seating]
                    for seating in rows["seating"].to_pylist()
                    for first in [seating[0][0]]]  # fmt: skip
        columns = {
            "episode_id": [f"{folder.name}/{place}" for place in places.tolist()],
            "game_id": [f"board-{group}" for group in groups.tolist()],
            "seating": seatings,
            "arm": [arm] * len(places),
            "step": places * steps // episodes,
        }
        for column, values in columns.items():
            field = SCHEMA.field(column)
            rows = rows.set_column(SCHEMA.get_field_index(column), field, pa.array(values, field.type))
        pq.write_table(rows, folder / f"{number:05d}.parquet", compression="zstd")


def analyze(folder: Path) -> tuple[float, float]:
    """Seconds that the stage takes, and GiB that its processes hold together at most."""
    (folder / "params.yaml").write_text("games: {matching: {}}")
    start, most = time.perf_counter(), 0
    command = [sys.executable, "-m", "stages.analyze"]
    stage = subprocess.Popen(command, cwd=folder, env={"PYTHONPATH": str(ROOT)})
    while stage.poll() is None:
        held = 0
        for process in [psutil.Process(stage.pid), *psutil.Process(stage.pid).children(recursive=True)]:
            try:
                held += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        most = max(most, held)
        time.sleep(0.1)
    if stage.returncode:
        sys.exit("The stage failed; see above.")
    return time.perf_counter() - start, most / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--folder", type=Path, help="keeps the runs (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.folder or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        source = played(root)
        for episodes in options.episodes:
            folder = root / str(episodes)
            if not (folder / "data").exists():
                write_run(folder, episodes, source)
            seconds, memory = analyze(folder)
            size = (folder / "reports/report.html").stat().st_size / 1e6
            print(
                f"{episodes:9,} episodes: {seconds:6.1f} s, {memory:.2f} GiB, report {size:.2f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
