"""The whole `analyze` stage on made-up runs of 100,000 and of 1,000,000 episodes: time and memory.

    python -m benchmarks.report [--episodes 100000 1000000] [--folder FOLDER]

Scripted players play real games on 1,024 boards, 16 episodes each with different numbers of questions; the run
on disk consists of these episodes over and over, on as many boards as there are groups, under new names and
with traces of tokens, in shards of 256: nine tenths of them training of 200 steps, the rest held-out games of
base, trained and Bayesian player and the arms of the intervention. The stage runs as `dvc repro` runs it, with the default
parameters; its memory is the largest sum over all its processes, looked at ten times a second.
"""

import argparse
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

from slim_rl.config import MatchingConfig
from slim_rl.evaluation.intervention import ARMS
from slim_rl.games.matching import generate_games, load_game
from slim_rl.games.matching.scripted import reference_player, shy_partner
from slim_rl.players.policy import TokenTrace
from slim_rl.rollout.episode import Episode, Turn
from slim_rl.rollout.store import SCHEMA, write_shard

ROOT = Path(__file__).parents[1]
BOARDS, SAMPLES, STEPS, SHARD = 1024, 16, 200, 256
TRACE_TOKENS, SAMPLED = 150, 30


def played(folder: Path) -> pa.Table:
    """BOARDS x SAMPLES real episodes, group after group."""
    config, episodes = MatchingConfig(), []
    for game in generate_games(BOARDS, 0, config):
        for sample in range(SAMPLES):
            state = load_game(game, max_turns=20)
            agent, partner = state.seats
            seats = {
                agent: reference_player(f"asks-{sample % 8}-random", state, config, sample),
                partner: shy_partner(state, partner, True),
            }
            turns = []
            while seat := state.turn:
                heard = state.observe(seat)
                turns.append(Turn(seat, heard, seats[seat].turn(heard)))
                state.step(turns[-1].text)
            mask = [1] * SAMPLED + [0] * (TRACE_TOKENS - SAMPLED)
            trace = TokenTrace(list(range(TRACE_TOKENS)), mask, [-0.5 * m for m in mask])
            episodes.append(
                Episode("", game["game_id"], "matching", {}, 0, "completed", "", turns, state.rewards(), state.facts(), {agent: trace})
            )  # fmt: skip
    write_shard(folder / "played.parquet", episodes)
    return pq.read_table(folder / "played.parquet")


def write_run(folder: Path, episodes: int, source: pa.Table) -> None:
    """Shards of a run with about so many episodes."""
    tenth = episodes // 10
    write_part(folder / "data/rollouts", "train", 9 * tenth, STEPS, source)
    held_out = tenth // 4
    for player in ("base", "trained", "bayes"):
        write_part(folder / "data/episodes/held-out" / player, player, held_out, 1, source)
    for model in ("base", "trained"):
        for arm in ARMS:
            part = f"{model}-{arm}"
            write_part(
                folder / "data/episodes/intervention" / part, part, held_out // (2 * len(ARMS)), 1, source
            )
    write_part(folder / "data/episodes/human-boards/humans", "humans", 100, 1, source)


def write_part(folder: Path, name: str, episodes: int, steps: int, source: pa.Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number, start in enumerate(tqdm(range(0, episodes, SHARD), desc=name, leave=False)):
        places = np.arange(start, min(start + SHARD, episodes))
        groups = places // SAMPLES
        rows = source.take(rng.permutation(BOARDS)[groups % BOARDS] * SAMPLES + places % SAMPLES)
        step = places * steps // episodes
        columns = {
            "episode_id": pa.array([f"{name}/{place}" for place in places.tolist()]),
            "game_id": pa.array([f"board-{group}" for group in groups.tolist()]),
            "step": pa.array(step, pa.int32()),
        }
        for column, values in columns.items():
            rows = rows.set_column(SCHEMA.get_field_index(column), column, values)
        pq.write_table(rows, folder / f"{number:05d}.parquet", compression="zstd")


def analyze(folder: Path) -> tuple[float, float]:
    """Seconds that the stage takes, and GiB that its processes hold together at most."""
    (folder / "params.yaml").write_text("")
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
