"""The flows with a real Prefect server and worker, as `make serve` starts them."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
import yaml
from test_pipeline import MINIATURE, ROOT, environment, fresh_copy

from slim_rl.config import MatchingConfig
from slim_rl.games.matching import generate_games

KEY = "-".join(("sk", "flow", "8c1d04b7e93a"))  # in pieces, for copies of this file are searched for it
SMALLEST = {
    **MINIATURE,
    "games": {"train_count": 8, "eval_count": 20, "max_turns": 8},
    "warmstart": {"demonstrations": 80, "batch": 8},
    "train": {"steps": 1, "games_per_step": 2, "samples_per_game": 2, "filters": []},
}
SERVER = ROOT / "tests/players/server.py"
SERIES = "held-out/asks-4-random"


class Prefect:
    def __init__(self, folder: Path):
        self.home, self.workspace = folder / "prefect", folder / "workspace"
        self.workspace.mkdir()
        fresh_copy(self.workspace, SMALLEST)
        self.port = free_port()
        self.environment = {
            **environment(),
            "OPENAI_API_KEY": KEY,
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        command = [sys.executable, "-m", "flows.serve", "--port", str(self.port)]
        self.process = subprocess.Popen(
            command, cwd=self.workspace, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        self.says = [next(self.process.stdout) for _ in range(4)]

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(["prefect", *arguments], env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, deployment: str, **parameters) -> str:
        """Start a run; returns its id."""
        given = [part for name, value in parameters.items() for part in ("-p", f"{name}={json.dumps(value)}")]
        return re.search(r"UUID: (\S+)", self("deployment", "run", deployment, *given))[1]

    def state(self, run: str, *wanted: str, within: float = 180) -> str:
        """The run's state, as soon as it is one of those wanted."""
        until = time.monotonic() + within
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/flow_runs/{run}") as reply:
                state = json.load(reply)["state"]["type"]
            if state in wanted or time.monotonic() > until:
                return state
            time.sleep(0.3)

    def artifacts(self, key: str, run: str) -> list[dict]:
        body = {"artifacts": {"key": {"any_": [key]}, "flow_run_id": {"any_": [run]}}}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/artifacts/filter",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request) as reply:
            return [artifact["data"] for artifact in json.load(reply)]


ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def free_port() -> int:
    """One of two neighbours, both free."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@pytest.fixture(scope="module")
def prefect(tmp_path_factory):
    running = Prefect(tmp_path_factory.mktemp("flows"))
    yield running
    if running.process.poll() is None:
        running.process.terminate()  # which ends server and worker, too
        running.process.wait()


def processes_in(folder: Path) -> list[str]:
    """Commands of the processes that work in `folder` on a stage."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if (process / "cwd").resolve() == folder and re.search(r"dvc repro|stages\.", command):
                found.append(command)
        except OSError:
            continue
    return found


def wait_for(condition, within: float = 120):
    until = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)
    return found


def test_a_deployed_pipeline_completes_and_a_second_run_skips_every_stage(prefect):
    assert f"http://127.0.0.1:{prefect.port}\n" in prefect.says[0]
    first = prefect.run("pipeline/laptop")
    assert prefect.state(first, *ENDED) == "COMPLETED"
    [stages] = prefect.artifacts("stages", first)
    assert {row["stage"]: row["did"] for row in json.loads(stages)} == dict.fromkeys(
        ("games", "base_model", "train", "evaluate", "analyze"), "ran"
    )
    [metrics] = prefect.artifacts("metrics", first)
    assert {"base", "trained", "bayes"} <= {row["player"] for row in json.loads(metrics)}
    [figures] = prefect.artifacts("figures", first)
    assert figures.count("![") == 6
    [report] = prefect.artifacts("report", first)
    with urllib.request.urlopen(re.search(r"http://[^)\s]+", report)[0]) as page:
        assert b"<!DOCTYPE html>" in page.read(200)
    repro = subprocess.run(
        ["dvc", "repro"], cwd=prefect.workspace, env=environment(), capture_output=True, text=True
    )
    assert "Data and pipelines are up to date" in repro.stdout  # just what `dvc repro` would have done

    second = prefect.run("pipeline/laptop")
    assert prefect.state(second, *ENDED) == "COMPLETED"
    [stages] = prefect.artifacts("stages", second)
    assert {row["did"] for row in json.loads(stages)} == {"skipped"}


def test_deployments_are_there_with_paused_schedules_and_one_run_at_a_time(prefect):
    for name in ("pipeline/laptop", "pipeline/gpu", "play_evaluation/openai"):
        shown = prefect("deployment", "inspect", name)
        assert "'active': False" in shown and "cron" in shown
        assert re.search(r"'limit': 1\b", shown)
    assert re.search(r"concurrency_limit=1\b", prefect("work-pool", "inspect", "laptop"))


def test_a_cancelled_run_ends_its_processes_and_is_resumed(prefect):
    before = (prefect.workspace / "params.yaml").read_bytes()
    parameters = {"train.steps": 8}
    run = prefect.run("pipeline/laptop", parameters=parameters)

    def step(number: int) -> list[Path]:
        return list(prefect.workspace.glob(f".work/train/*/rollouts/step-{number:05d}/*/00000.parquet"))

    wait_for(lambda: step(1))
    assert any("stages.train" in command for command in processes_in(prefect.workspace))
    written = step(0)[0].stat().st_mtime_ns
    prefect("flow-run", "cancel", run)
    assert prefect.state(run, "CANCELLED", within=60) == "CANCELLED"
    assert processes_in(prefect.workspace) == []
    assert (prefect.workspace / "params.yaml").read_bytes() == before
    assert not step(7)

    again = prefect.run("pipeline/laptop", parameters=parameters)
    assert prefect.state(again, *ENDED) == "COMPLETED"
    assert step(0)[0].stat().st_mtime_ns == written and step(7)


def test_a_wrong_parameter_fails_the_run_with_its_sentence(prefect):
    run = prefect.run("pipeline/laptop", parameters={"train.stepz": 3})
    assert prefect.state(run, *ENDED) == "FAILED"
    assert "there is no parameter train.stepz" in prefect("flow-run", "inspect", run).replace("\n", " ")


# The evaluation with a partner behind a server that fails.


@pytest.fixture
def evaluation(prefect, tmp_path):
    """A workspace with 300 boards to be played by one reference player."""
    for name in ("flows", "stages", "conf", "data/human"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "data/games").mkdir()
    games = generate_games(300, 0, MatchingConfig())
    (tmp_path / "data/games/evaluate.jsonl").write_text("".join(json.dumps(game) + "\n" for game in games))
    return tmp_path


def serve(*arguments: str) -> tuple[subprocess.Popen, str]:
    process = subprocess.Popen([sys.executable, SERVER, *arguments], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def set_partner(workspace: Path, url: str) -> None:
    partner = dict(
        kind="chat", base_url=f"{url}/v1", always_accept=False, timeout_seconds=1.0, max_retries=4,
        max_requests_per_minute=None, max_tokens_per_minute=None,
    )  # fmt: skip
    values = {"partner": partner, "evaluate": {"references": [SERIES.partition("/")[2]]}}
    (workspace / "params.yaml").write_text(yaml.safe_dump(values))


def play(prefect, workspace: Path) -> subprocess.Popen:
    code = f"from flows.evaluation import play_evaluation as play; play(only=['{SERIES}'], batch_episodes=50)"
    log = (workspace / "flow.log").open("a")
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=workspace, env=prefect.environment, stdout=log, stderr=log
    )


def counts(url: str) -> dict:
    with urllib.request.urlopen(f"{url}/counts") as reply:
        return json.load(reply)


def grep(text: str, *folders: Path) -> list[Path]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if text.encode() in path.read_bytes()]


def test_300_episodes_with_a_partner_that_fails_and_a_flow_that_is_killed(prefect, evaluation):
    server, url = serve("--faults", "0.3", "--latency", "0.02", "--retry-after", "0.1")
    try:
        set_partner(evaluation, url)
        flow = play(prefect, evaluation)
        wait_for(lambda: sum(counts(url)["accepted"]) >= 150)
        flow.send_signal(signal.SIGKILL)
        flow.wait()
        ended = sum(counts(url)["accepted"])
        assert ended < 300
        flow = play(prefect, evaluation)
        assert flow.wait() == 0, (evaluation / "flow.log").read_text()[-3000:]
        after = counts(url)
    finally:
        server.kill()
    from slim_rl.players.ledger import Ledger
    from slim_rl.rollout.store import finished

    [folder] = evaluation.glob(".work/evaluate/*")
    episodes = finished(folder / SERIES).values()
    assert Counter(episode.status for episode in episodes) == {"completed": 300}
    assert len(after["faults"]) == 9
    # Every reply that arrived is in an episode; a dialogue came to its end twice only if its last one did not.
    arrived = len(Ledger(folder / "partner.jsonl", None).replies)
    assert arrived == sum(turn.seat == "player-2" for episode in episodes for turn in episode.turns)
    never_arrived = after["good"] - arrived - 2  # and two runs tried the key
    played_again = sum(after["accepted"]) - 300
    assert len(after["accepted"]) == 300 and played_again <= min(never_arrived, 8)
    assert after["calls"] <= 1.6 * after["needed"]
    assert grep(KEY, evaluation, prefect.home) == []


def test_a_wrong_key_ends_the_flow_with_a_sentence_and_the_key_is_nowhere(prefect, evaluation):
    server, url = serve("--key", "another")
    try:
        set_partner(evaluation, url)
        done = subprocess.run(
            [sys.executable, "-m", "flows.evaluation"],
            cwd=evaluation, env=prefect.environment, capture_output=True, text=True,
        )  # fmt: skip
        flow = play(prefect, evaluation)
        flow.wait()
        assert counts(url)["keys"] == [f"Bearer {KEY}"]
    finally:
        server.kill()
    sentence = f"The partner's service at {url}/v1 refuses the key in OPENAI_API_KEY; set the right one."
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {sentence}\n")
    assert sentence in (evaluation / "flow.log").read_text()
    assert grep(KEY, evaluation, prefect.home) == []


def test_missing_episodes_are_named_and_the_next_run_plays_just_these(prefect, evaluation):
    server, url = serve("--faults", "1", "--kinds", "500")
    try:
        set_partner(evaluation, url)
        lines = (evaluation / "data/games/evaluate.jsonl").read_text().splitlines()[:3]
        (evaluation / "data/games/evaluate.jsonl").write_text("\n".join(lines))
        values = yaml.safe_load((evaluation / "params.yaml").read_text())
        values["partner"]["max_retries"] = 0
        (evaluation / "params.yaml").write_text(yaml.safe_dump(values))
        code = (
            "import flows.evaluation as e; e.check_service = lambda partner: None;"
            "e.play_batch = e.play_batch.with_options(retries=1, retry_delay_seconds=0.1);"
            f"print(e.play_evaluation(only=['{SERIES}'], return_state=True).message)"
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=evaluation, env=prefect.environment, capture_output=True, text=True
        )
        assert counts(url)["calls"] == 6  # three episodes, each tried again once
    finally:
        server.kill()
    assert (
        "3 episodes are missing; the next run plays just these: held-out/asks-4-random/matching"
        in done.stdout
    )


def test_ctrl_c_stops_server_and_worker(prefect):
    prefect.process.send_signal(signal.SIGINT)
    assert prefect.process.wait(timeout=60) == 1
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{prefect.port}/api/health")
    assert grep(KEY, prefect.home, prefect.workspace) == []
