"""Whole evaluations with a paid partner that fails, under everything that can happen to them. Not in `make test`.

    python -m tests.flows.soak            # every case, about 2,800 episodes; half an hour
    python -m tests.flows.soak Ctrl-C --boards 4

It prints the table of docs/operations.md: a line for each case. "Bought twice" are replies that were sent and are not in the
ledger; a `kill -9` may lose those under way, at most eight. "Late" are calls more than three seconds after the stop, "repro"
those that `dvc repro` makes once the flow has ended well; both leave out the calls that only try the key.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from slim_rl.players.ledger import Ledger
from slim_rl.rollout.shards import read_episodes
from tests.flows.running import ENDED, Prefect, wait_for
from tests.partner import PartnerServer
from tests.settings import miniature
from tests.workspaces import fresh_copy, repro

FAULTS = (
    "--faults", "0.3", "--retry-after", "0.1", "--latency", "0.01", "--kinds", "429", "429 with retry-after", "500", "503",
    "dropped", "hang", "truncated", "no choices", "refusal", "garbage", "nonsense",
)  # fmt: skip
AT_ONCE = 8
FLOW = [sys.executable, "-m", "flows.evaluation"]
STAGE = ["dvc", "repro", "--single-item", "--force", "--no-run-cache", "evaluate"]


class Soak:
    """A workspace, its Prefect and its partner's server; `case` plays one evaluation from nothing."""

    def __init__(self, folder: Path, boards: int):
        finished = fresh_copy(folder / "finished", miniature())
        assert repro(finished).returncode == 0
        self.boards, self.server, self.prefect = boards, PartnerServer(), Prefect(finished, folder)
        self.workspace, self.codes = self.prefect.workspace, []
        self.calls = self.bought = self.late = self.on_the_wire = 0

    def parameters(self, **service) -> None:
        partner = dict(base_url=self.server.base_url, timeout_seconds=3.0, max_retries=4, max_concurrent=AT_ONCE)
        rates = {} if service.pop("default_rates", False) else dict.fromkeys(
            ("max_requests_per_minute", "max_tokens_per_minute")
        )  # fmt: skip
        seats = {"seating": ["policy", "service:partner"], "always_accept": False, "eval_count": self.boards}
        values = miniature(games={"matching": seats}, studies={"asking": {"references": ["asks-4-random"]}})
        values |= {"profile": "asking", "services": {"partner": partner | rates | service}}
        (self.workspace / "params.yaml").write_text(yaml.safe_dump(values))

    def start(self, command: list[str]) -> subprocess.Popen:
        return subprocess.Popen(
            command, cwd=self.workspace, env=self.prefect.environment, start_new_session=True,
            stdout=self.log, stderr=self.log,
        )  # fmt: skip

    def counted(self) -> dict[str, int]:
        return {name: self.server.counts()[name] for name in ("calls", "good", "checks", "under_way")}

    def options(self, *options: str) -> None:
        """The server's options from now on; what it has counted is kept here."""
        counts = self.counted()
        self.calls, self.bought = self.calls + counts["calls"], self.bought + counts["good"] - counts["checks"]
        self.server.start_over(*options)

    def until(self, replies: int, running: Callable[[], bool]) -> None:
        target = self.counted()["good"] + replies
        wait_for(lambda: self.counted()["good"] >= target or not running(), within_seconds=1200)

    def end(self, process: subprocess.Popen) -> None:
        self.codes.append(process.wait(timeout=1800))

    # What happens to a run.

    def plays(self, command: list[str] = FLOW) -> None:
        self.end(self.start(command))

    def gets(self, number: int, command: list[str] = FLOW) -> None:
        process = self.start(command)
        self.until(self.boards, lambda: process.poll() is None)
        self.on_the_wire += AT_ONCE if number == signal.SIGKILL else 0  # at most
        os.killpg(process.pid, number)
        self.stopped(lambda: process.poll() is not None)
        self.end(process)

    def stopped(self, ended: Callable[[], bool]) -> None:
        time.sleep(3)
        before = self.counted()["calls"]
        wait_for(ended)
        time.sleep(1)
        self.late += self.counted()["calls"] - before

    def is_cancelled(self) -> None:
        run = self.prefect.run("play_evaluation/openai")
        state = lambda: self.prefect.get(f"flow_runs/{run}")["state"]["type"]  # noqa: E731
        self.until(self.boards, lambda: state() not in ENDED)
        subprocess.run(["prefect", "flow-run", "cancel", run], env=self.prefect.environment, check=True)
        self.stopped(lambda: state() in ENDED)
        self.codes.append(state())

    def meets(self, *options: str, command: list[str] = FLOW) -> None:
        """The server is otherwise from the middle of a run on, until it has ended."""
        process = self.start(command)
        self.until(self.boards, lambda: process.poll() is None)
        self.options(*options)
        self.end(process)
        self.options(*FAULTS)

    def case(self, name: str, steps: Callable[[], None], **service) -> None:
        for left in (".work/evaluate", ".work/services", "data/episodes"):
            shutil.rmtree(self.workspace / left, ignore_errors=True)
        self.codes, started = [], time.monotonic()
        self.server.start_over(*FAULTS)
        self.calls = self.bought = self.late = self.on_the_wire = 0
        self.parameters(**service)
        with (self.workspace.parent / f"{name}.log").open("w") as self.log:
            self.plays([sys.executable, "-m", "stages.games"])
            self.codes.clear()
            steps()
            self.options(*FAULTS)
            self.plays(STAGE)
        after = self.counted()
        episodes = list(read_episodes(self.workspace / "data/episodes"))
        every = {episode.episode_id for episode in episodes}
        ended = {episode.episode_id for episode in episodes if episode.status != "failed"}
        kept = len(Ledger(self.workspace / ".work/services/partner.jsonl", None, run="any").replies)
        twice = max(0, self.bought - kept - self.on_the_wire)
        codes = " ".join(map(str, self.codes))
        print(
            f"| {name} | {len(every)} | {len(every - ended)} | {self.calls} | {self.bought} | {kept} | {twice} | {self.late} | "
            f"{after['calls'] - after['checks']} | {codes} | {time.monotonic() - started:.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of the cases; by default all")
    parser.add_argument(
        "--boards", type=int, default=10, help="held-out boards, of which an evaluation makes 28 episodes each"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that what is started has it, also from the background
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    (folder / "finished").mkdir()
    soak = Soak(folder, options.boards)
    wrong_key, down = ("--key", "another"), ("--faults", "1", "--kinds", "503")

    def then(first: Callable[..., None], *arguments, **more) -> Callable[[], None]:
        def steps() -> None:
            first(*arguments, **more)
            soak.plays()

        return steps

    def killed_twice() -> None:
        soak.gets(signal.SIGKILL)
        soak.gets(signal.SIGKILL)
        soak.plays()

    def budget() -> None:
        soak.plays()  # ends at the budget
        soak.parameters(max_cost_dollars=100.0)
        soak.plays()

    cases: dict[str, tuple[Callable[[], None], dict]] = {
        "success": (soak.plays, {}),
        "Ctrl-C": (then(soak.gets, signal.SIGINT), {}),
        "SIGTERM": (then(soak.gets, signal.SIGTERM), {}),
        "flow-run cancel": (then(soak.is_cancelled), {}),
        "kill -9 twice": (killed_twice, {}),
        "budget in the middle": (budget, {"max_cost_dollars": 0.1}),
        "outage, flow": (then(soak.meets, *down), {"max_retries": 2}),
        "outage, stage": (then(soak.meets, *down, command=STAGE), {"max_retries": 2}),
        "wrong key in the middle": (then(soak.meets, *wrong_key), {}),
        "default rates": (soak.plays, {"default_rates": True}),
    }
    print(
        "| case | episodes | lost | calls | replies | kept | bought twice | late | repro | codes | seconds |",
        flush=True,
    )
    print("|---" * 11 + "|", flush=True)
    try:
        for name in options.names or cases:
            steps, service = cases[name]
            soak.case(name, steps, **service)
    finally:
        soak.prefect.stop()
        soak.server.close()


if __name__ == "__main__":
    main()
