"""The whole pipeline in miniature, through DVC, in a fresh copy of the repository."""

import json
import os
import shutil
import signal
import subprocess
import time
from operator import itemgetter
from pathlib import Path

import pytest
import yaml

from slim_rl.rollout.shards import read_episodes
from tests.settings import merged
from tests.workspaces import copy_of, environment, repro

pytestmark = [pytest.mark.slow, pytest.mark.pipeline]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    """`dvc repro` as the leader of its own session."""
    return subprocess.Popen(
        ["dvc", "repro", *arguments],
        cwd=folder, env=environment(), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def kill(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(condition, process: subprocess.Popen, within_seconds: float = 300) -> None:
    until = time.monotonic() + within_seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def test_the_report_and_the_metrics_are_there(finished):
    metrics = json.loads((finished / "reports/metrics.json").read_text())
    assert {"base", "trained", "own-view", "bayes"} <= metrics.keys()
    assert metrics["verdict"].startswith("Too little data")
    assert metrics["verdict"] in (finished / "reports/report.html").read_text().replace("&#39;", "'")
    assert metrics["human_boards"]["humans"]["reward"] == pytest.approx(0.924, abs=0.001)


def test_a_second_run_does_nothing_also_after_a_new_game_and_study(finished, tmp_path):
    copy = copy_of(finished, tmp_path / "copy")
    for name in ("games/chess/__init__.py", "studies/luck/plan.py"):
        path = copy / "slim_rl" / name
        path.parent.mkdir()
        path.write_text("LUCK = 1\n")
    again = repro(copy).stdout
    assert "Running stage 'code'" in again and again.count("Running stage") == 1
    assert again.count("didn't change, skipping") == 5


def test_a_killed_training_goes_on_with_the_same_numbers(finished, tmp_path):
    """kill -9 while training, then `dvc repro`: the episodes and weights it would have had, at most one step done
    twice."""
    copy = copy_of(finished, tmp_path / "copy")
    # The earlier stages stand; training starts anew, because DVC finds its outputs nowhere.
    for output in ("models/trained", "data/rollouts", ".dvc/cache", ".work"):
        shutil.rmtree(copy / output)
    process = start(copy, "--single-item", "train")
    wait_for(lambda: list(copy.glob(".work/train/*/rollouts/step-00001/*/*.parquet")), process)
    kill(process)
    assert not (copy / "models/trained").exists()
    [first_step] = copy.glob(".work/train/*/rollouts/step-00000/*/00000.parquet")
    written = first_step.stat().st_mtime_ns

    resumed = repro(copy, "--single-item", "train")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    [again] = copy.glob("data/rollouts/step-00000/*/00000.parquet")
    assert again.stat().st_mtime_ns == written
    for output in ("data/rollouts", "models/trained"):
        there, expected = contents(copy / output), contents(finished / output)
        assert (there.pop("began.txt", "") != expected.pop("began.txt", "")) == (output == "data/rollouts")
        assert there == expected


def test_a_killed_paid_evaluation_goes_on_after_an_edit_and_pays_for_no_reply_twice(
    finished, tmp_path, serve, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    copy = copy_of(finished, tmp_path / "copy")
    server = serve("--hold-after", "80")
    rates = {"max_requests_per_minute": 10**5, "max_tokens_per_minute": 10**8}
    service = {"base_url": server.base_url, "max_concurrent": 4, **rates}
    changes = {
        "games": {"matching": {"seating": ["policy", "service:partner"], "always_accept": False}},
        "services": {"partner": service},
        "studies": {
            "asking": {
                "references": ["asks-4-random"],
                "human_references": [],
                "transplant_games": 0,
                "transfer_games": 0,
            }
        },
    }
    parameters = yaml.safe_load((copy / "params.yaml").read_text())
    (copy / "params.yaml").write_text(yaml.safe_dump(merged(parameters, changes)))

    assert repro(copy, "code").returncode == 0
    process = start(copy, "--single-item", "evaluate")
    # Four requests are held: every reply before them has arrived.
    wait_for(lambda: itemgetter("good", "under_way")(server.counts()) == (80, 4), process)
    kill(process)
    rules = copy / "slim_rl/games/matching/rules.py"
    rules.write_text(rules.read_text().replace('"""', '"""Edited. ', 1))
    server.start_over()
    done = repro(copy, "--single-item", "evaluate")
    assert done.returncode == 0, done.stderr[-3000:]

    replies = sum(
        turn.seat == "player-2"
        for episode in read_episodes(copy / "data/episodes")
        if "service:partner" in episode.seating.values()
        for turn in episode.turns
    )
    checks = 1  # the stage `code` tries the key
    assert replies > 80 and 80 + server.counts()["good"] == replies + checks
