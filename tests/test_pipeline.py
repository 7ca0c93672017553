"""The whole pipeline in miniature, in a fresh copy of the repository, as a newcomer would run it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
MINIATURE = {
    "games": {"train_count": 16, "eval_count": 120},
    "warmstart": {"demonstrations": 160, "batch": 8},
    "train": {"steps": 4, "games_per_step": 2, "samples_per_game": 2, "filters": []},
    "evaluate": {
        "references": ["own-view", "bayes"],
        "human_references": ["own-view"],
        "intervention_games": 8,
    },
}


def fresh_copy(folder: Path, parameters_changed: dict = MINIATURE) -> Path:
    files = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT).split(
        b"\0"
    )
    for name in filter(None, map(bytes.decode, files)):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "dvc.lock").unlink(missing_ok=True)
    parameters = yaml.safe_load((folder / "params.yaml").read_text())
    for section, values in parameters_changed.items():
        parameters[section] = {**parameters.get(section, {}), **values}
    (folder / "params.yaml").write_text(yaml.safe_dump(parameters))
    git = ["git", "-C", folder, "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "A fresh copy"]):
        subprocess.run([*git, *command], check=True)
    return folder


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
    }


def repro(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["dvc", "repro", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = fresh_copy(tmp_path_factory.mktemp("pipeline"))
    done = repro(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_the_report_and_the_metrics_are_there(finished):
    metrics = json.loads((finished / "reports/metrics.json").read_text())
    assert {"base", "trained", "own-view", "bayes"} <= metrics.keys()
    assert metrics["verdict"].startswith(("Supported", "Not supported"))
    assert metrics["verdict"] in (finished / "reports/report.html").read_text().replace("&#39;", "'")
    assert metrics["human_boards"]["humans"]["reward"] == pytest.approx(0.924, abs=0.001)


def test_a_second_run_does_nothing(finished):
    assert "Data and pipelines are up to date" in repro(finished).stdout


def test_a_killed_training_goes_on_with_the_same_numbers(finished, tmp_path):
    """kill -9 while training, then `dvc repro`: the numbers it would have had, no step done twice but one."""
    expected = contents(finished / "data/rollouts"), (finished / "reports/metrics.json").read_bytes()
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", finished, copy], check=True)
    # The earlier stages stand; training starts anew, for DVC finds its outputs nowhere.
    for output in ("models/trained", "data/rollouts", ".dvc/cache", ".work"):
        shutil.rmtree(copy / output)
    process = subprocess.Popen(
        ["dvc", "repro"],
        cwd=copy, env=environment(), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not list(copy.glob(".work/train/*/rollouts/step-00001/*/*.parquet")):
        assert process.poll() is None and time.monotonic() < until, "training never came to its second step"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (copy / "models/trained").exists()
    first_step = next(copy.glob(".work/train/*/rollouts/step-00000/*/00000.parquet")).stat().st_mtime_ns

    resumed = repro(copy)
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    [again] = copy.glob("data/rollouts/step-00000/*/00000.parquet")
    assert again.stat().st_mtime_ns == first_step
    assert contents(copy / "data/rollouts") == expected[0]
    assert (copy / "reports/metrics.json").read_bytes() == expected[1]
