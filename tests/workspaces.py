"""Fresh copies of the repository to run the pipeline in, as a user would."""

import multiprocessing
import os
import runpy
import subprocess
import sys
from pathlib import Path

import yaml

from tests.settings import merged

ROOT = Path(__file__).parents[1]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["stages.base_model", "stages.train", "stages.evaluate"]
)  # their imports take ten seconds


def fresh_copy(folder: Path, parameters: dict) -> Path:
    """The repository's files in `folder`, committed, with these parameters merged into params.yaml."""
    files = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT)
    for name in filter(None, files.decode().split("\0")):
        if (ROOT / name).is_file() and name != "dvc.lock":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    default = yaml.safe_load((ROOT / "params.yaml").read_text())
    (folder / "params.yaml").write_text(yaml.safe_dump(merged(default, parameters)))
    git = ["git", "-C", folder, "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "A fresh copy"]):
        subprocess.run([*git, *command], check=True)
    return folder


def copy_of(workspace: Path, folder: Path) -> Path:
    """A copy of a workspace with all that its runs made; modification times stay."""
    subprocess.run(["cp", "-a", workspace, folder], check=True)
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


def start_stage(stage: str, folder: Path) -> multiprocessing.Process:
    """A stage in a process of its own, whose imports are those of a process that all of these are forked from. What it
    says goes to `said.txt`."""
    process = _FORKS.Process(target=_run_stage, args=(stage, folder))
    process.start()
    return process


def _run_stage(stage: str, folder: Path) -> None:
    os.chdir(folder)
    with open("said.txt", "w") as said:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
    sys.argv = [stage]
    runpy.run_module(f"stages.{stage}", run_name="__main__", alter_sys=True)
