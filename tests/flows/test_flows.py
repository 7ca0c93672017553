"""The flows with a real Prefect server and worker, as `make serve` starts them."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import chdir
from pathlib import Path

import pytest
import yaml

from slim_rl.core.errors import UserError
from slim_rl.players.ledger import Ledger
from slim_rl.rollout.store import Store
from stages import games
from tests.flows.running import ENDED, KEY, Prefect, grep, processes_in, wait_for
from tests.settings import miniature
from tests.workspaces import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.pipeline]
PLAYER = "asks-4-random"
SERIES = f"matching/held-out/{PLAYER}"


@pytest.fixture(scope="module")
def prefect(finished, tmp_path_factory):
    running = Prefect(finished, tmp_path_factory.mktemp("flows"))
    yield running
    running.stop()


def stages_of(prefect: Prefect, run: str) -> dict[str, str]:
    [stages] = prefect.artifacts("stages", run)
    did = {row["stage"]: row["did"] for row in json.loads(stages)}
    assert did.pop("code") == "ran"  # it always runs
    return did


def test_deployments_are_there_with_paused_schedules_and_one_run_at_a_time(prefect):
    assert f"http://127.0.0.1:{prefect.port}\n" in prefect.says[0]
    for name in ("pipeline/laptop", "pipeline/gpu", "play_evaluation/openai"):
        deployment = prefect.get(f"deployments/name/{name}")
        assert [schedule["active"] for schedule in deployment["schedules"]] == [False]
        assert deployment["global_concurrency_limit"]["limit"] == 1
    assert prefect.get("work_pools/laptop")["concurrency_limit"] == 1


def test_a_cancelled_run_ends_its_processes_and_is_resumed(prefect):
    before = (prefect.workspace / "params.yaml").read_bytes()
    none = {f"studies.asking.{name}": 0 for name in ("transplant_games", "transfer_games")}
    parameters = {"train.steps": 12, "studies.asking.references": [], "studies.asking.human_references": [], **none}
    run = prefect.run("pipeline/laptop", parameters=parameters)
    done = set(prefect.workspace.glob(".work/train/*"))

    def step(number: int) -> list[Path]:
        [folder] = set(prefect.workspace.glob(".work/train/*")) - done or [Path("nowhere")]
        return list(folder.glob(f"rollouts/step-{number:05d}/*/00000.parquet"))

    wait_for(lambda: step(1))
    assert any("stages.train" in command for command in processes_in(prefect.workspace))
    written = step(0)[0].stat().st_mtime_ns
    prefect.cancel(run)
    assert prefect.state(run, "CANCELLED", within_seconds=60) == "CANCELLED"
    wait_for(lambda: processes_in(prefect.workspace) == [], within_seconds=30)
    assert (prefect.workspace / "params.yaml").read_bytes() == before
    assert not step(11)

    again = prefect.run("pipeline/laptop", parameters=parameters)
    assert prefect.state(again, *ENDED) == "COMPLETED"
    assert step(0)[0].stat().st_mtime_ns == written and step(11)
    ran = ("train", "evaluate", "analyze")
    assert stages_of(prefect, again) == {"games": "skipped", "base_model": "skipped", **dict.fromkeys(ran, "ran")}
    [metrics] = prefect.artifacts("metrics", again)
    assert {"base.reward", "trained.reward"} <= {row["metric"] for row in json.loads(metrics)}
    [figures] = prefect.artifacts("figures", again)
    # So few boards have no means to draw questions by.
    assert re.findall(r"!\[(\w+)\]\(data:image/png;base64,", figures) == ["training"]
    [report] = prefect.artifacts("report", again)
    with urllib.request.urlopen(re.search(r"http://[^)\s]+", report)[0]) as page:
        assert b"<!DOCTYPE html>" in page.read(200)

    settings = [part for name, value in parameters.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "stages.run", *settings]
    repro = subprocess.run(command, cwd=prefect.workspace, env=environment(), capture_output=True, text=True)
    assert repro.stdout.count("Running stage") == 1, "more than code"


# The evaluation with a partner behind a server that fails.


@pytest.fixture
def evaluation(finished, tmp_path):
    """A workspace with held-out boards to be played by one reference player; the models are the finished ones."""
    for name in ("flows", "stages", "slim_rl", "conf", "data/human", "models"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to((finished if name == "models" else ROOT) / name)
    return tmp_path


def set_up(workspace: Path, url: str, boards: int, **service) -> None:
    """Parameters, and the first held-out boards of `finished`."""
    service = dict(
        base_url=f"{url}/v1", timeout_seconds=1.0, max_retries=4,
        max_requests_per_minute=None, max_tokens_per_minute=None,
    ) | service  # fmt: skip
    values = miniature(
        games={"matching": {"seating": ["policy", "service:partner"], "always_accept": False, "eval_count": boards}},
        studies={"asking": {"references": [PLAYER]}},
    )
    values["profile"] = "asking"
    values["services"] = {"partner": service}  # `miniature` would drop the limits that are None
    (workspace / "params.yaml").write_text(yaml.safe_dump(values))
    with chdir(workspace):
        games.main()


STOPPED = f"""
from functools import partial
from flows.evaluation import play_evaluation
from flows.workspace import run_now
from slim_rl.runtime.cli import run_stage
run_stage(lambda: run_now(partial(play_evaluation, only=['{SERIES}'])), None)
"""


def stop_while_calls_hang(server, workspace: Path, ended, stop) -> None:
    """Stop a flow while all its calls hang. It makes no other one, and holds the workspace until it ends."""
    wait_for(lambda: (server.counts()["under_way"], server.counts()["good"]) == (8, 21))
    stop()
    held = False
    with (workspace / ".work/run.lock").open() as lock:
        while not ended():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(lock, fcntl.LOCK_UN)
            except BlockingIOError:
                held = True
            time.sleep(0.05)
    assert held and server.counts()["calls"] == 21 + 8


@pytest.mark.parametrize(("name", "everybody", "own_server"), [("SIGINT", True, True), ("SIGTERM", False, False)])
def test_a_signal_stops_the_calls_and_then_the_process(prefect, evaluation, serve, name, everybody, own_server):
    """Ctrl-C in a terminal reaches every process of the group; SIGTERM, the flow's alone."""
    server = serve("--hold-after", "21")
    set_up(evaluation, server.url, boards=60, max_concurrent=8, timeout_seconds=3.0)
    environment = prefect.environment
    if own_server:
        environment = {name: value for name, value in environment.items() if name != "PREFECT_API_URL"}
    command = [sys.executable, "-c", STOPPED]
    with (evaluation / "flow.log").open("w") as log:
        flow = subprocess.Popen(command, cwd=evaluation, env=environment, stderr=log, start_new_session=True)
    kill = os.killpg if everybody else os.kill
    stop_while_calls_hang(
        server, evaluation, lambda: flow.poll() is not None, lambda: kill(flow.pid, getattr(signal, name))
    )
    assert flow.returncode == 1 and "Interrupted. Finished work is kept" in (evaluation / "flow.log").read_text()


def play(prefect: Prefect, workspace: Path, more: str = "", series: str = SERIES) -> subprocess.Popen:
    code = (
        f"import flows.evaluation as e\n{more}\n"
        f"print(e.play_evaluation(only=['{series}'], batch_episodes=50, return_state=True).message)"
    )
    log = (workspace / "flow.log").open("a")
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=workspace, env=prefect.environment, stdout=log, stderr=log
    )


def test_120_episodes_with_a_partner_that_fails_and_a_flow_that_is_killed(prefect, evaluation, serve):
    server = serve("--faults", "0.3", "--latency", "0.02", "--retry-after", "0.1")
    set_up(evaluation, server.url, boards=120, max_concurrent=8)
    flow = play(prefect, evaluation)
    wait_for(lambda: sum(server.counts()["accepted"]) >= 60)
    flow.send_signal(signal.SIGKILL)
    flow.wait()
    assert sum(server.counts()["accepted"]) < 120
    flow = play(prefect, evaluation)
    assert flow.wait() == 0, (evaluation / "flow.log").read_text()[-3000:]
    after = server.counts()

    [folder] = evaluation.glob(".work/evaluate/*")
    episodes = Store(folder / SERIES).finished().values()
    assert Counter(episode.status for episode in episodes) == {"completed": 120}
    assert len(after["faults"]) == 9
    # Every reply that arrived is in an episode; a dialogue came to its end twice only if its last one was
    # under way at the kill, as at most 8 were.
    arrived = len(Ledger(evaluation / ".work/services/partner.jsonl", None, run="any").replies)
    assert arrived == sum(turn.seat == "player-2" for episode in episodes for turn in episode.turns)
    never_arrived = after["good"] - arrived - 2  # and two runs tried the key
    played_again = sum(after["accepted"]) - 120
    assert len(after["accepted"]) == 120 and played_again <= min(never_arrived, 8)
    assert after["calls"] <= 1.6 * after["needed"]
    assert grep(KEY, evaluation, prefect.home) == []


def test_a_first_run_plays_what_a_series_comes_after_and_then_the_series(prefect, evaluation, serve):
    set_up(evaluation, serve().url, boards=2)
    flow = play(prefect, evaluation, series="matching/transplant/base-given-trained")
    assert flow.wait() == 0, (evaluation / "flow.log").read_text()[-3000:]
    [folder] = evaluation.glob(".work/evaluate/*")
    played = Counter(episode_id.rpartition("/")[0] for episode_id in Store(folder).finished())
    assert played == {"held-out/base": 2, "held-out/trained": 2, "transplant/base-given-trained": 2}


def test_an_evaluation_with_gaps_fails_unless_they_are_allowed(evaluation, serve, run_stage, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.chdir(evaluation)
    server = serve("--faults", "1", "--kinds", "refusal")
    set_up(evaluation, server.url, boards=2, max_retries=0)
    values = yaml.safe_load(Path("params.yaml").read_text())
    values["studies"]["asking"] |= {"transplant_games": 0, "transfer_games": 0}

    def evaluate(allowed: bool) -> None:
        Path("params.yaml").write_text(yaml.safe_dump({**values, "evaluate": {"allow_failed": allowed}}))
        run_stage("evaluate")

    with pytest.raises(UserError, match=r"\d+ episodes of the evaluation are missing; the first failed with NoReply"):
        evaluate(False)
    assert not Path("data/episodes").exists()
    evaluate(True)
    assert Path("data/episodes").exists()
    assert len([*Path(".work/evaluate").iterdir()]) == 1  # what had ended was not played anew


def test_a_wrong_key_ends_the_flow_with_a_sentence_and_the_key_is_nowhere(prefect, evaluation, serve):
    server = serve("--key", "another")
    set_up(evaluation, server.url, boards=3)
    done = subprocess.run(
        [sys.executable, "-m", "flows.evaluation"],
        cwd=evaluation, env=prefect.environment, capture_output=True, text=True,
    )  # fmt: skip
    assert server.counts()["keys"] == [f"Bearer {KEY}"]
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith("error: ")
    assert f"{server.url}/v1" in done.stderr and "OPENAI_API_KEY" in done.stderr
    play(prefect, evaluation).wait()
    assert done.stderr.removeprefix("error: ").strip() in (evaluation / "flow.log").read_text()
    assert grep(KEY, evaluation, prefect.home) == []


def test_missing_episodes_are_named_and_the_next_run_plays_just_these(prefect, evaluation, serve):
    server = serve("--faults", "1", "--kinds", "500")
    set_up(evaluation, server.url, boards=3, max_retries=0)
    more = "from stages import ready\nready.check = lambda config: None\ne.play_batch = e.play_batch.with_options(retries=1, retry_delay_seconds=0.1)"
    play(prefect, evaluation, more).wait()
    assert server.counts()["calls"] == 6  # three episodes, each tried again once
    assert (
        f"3 episodes are missing; the next run plays only these: held-out/{PLAYER}/matching"
        in (evaluation / "flow.log").read_text()
    )


def test_a_cancelled_evaluation_stops_its_calls_and_another_run_plays_the_rest(prefect, serve):
    server = serve("--hold-after", "21")
    set_up(prefect.workspace, server.url, boards=60, max_concurrent=8, timeout_seconds=3.0)
    run = prefect.run("play_evaluation/openai", only=[SERIES])
    ended = lambda: prefect.get(f"flow_runs/{run}")["state"]["type"] in ENDED  # noqa: E731
    stop_while_calls_hang(server, prefect.workspace, ended, lambda: prefect.cancel(run))
    assert prefect.state(run, *ENDED) == "CANCELLED"
    server.start_over()
    again = prefect.run("play_evaluation/openai", only=[SERIES])
    assert prefect.state(again, *ENDED) == "COMPLETED"
    [rows] = prefect.artifacts("episodes", again)
    assert [(row["series"], row["missing"]) for row in json.loads(rows)] == [(SERIES, 0)]


def test_ctrl_c_stops_server_and_worker(prefect):
    prefect.process.send_signal(signal.SIGINT)
    assert prefect.process.wait(timeout=60) == 1
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{prefect.port}/api/health")
    assert grep(KEY, prefect.home, prefect.workspace) == []
