"""Every entry point has --help, and rejects what it does not know."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.cli import COMMANDS

ROOT = Path(__file__).parents[1]
ENTRY_POINTS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("slim_rl", "stages", "flows", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if '__name__ == "__main__"' in path.read_text() and path.name != "zygote.py"  # the sandbox alone starts it
)


@pytest.fixture
def start(tmp_path, monkeypatch, capsys):
    """start(module, argument): runs a module as a program in an empty folder; gives exit code and output."""
    monkeypatch.chdir(tmp_path)

    def run(module: str, argument: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [module, argument])
        with pytest.raises(SystemExit) as end:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        assert list(tmp_path.iterdir()) == [], "it wrote something"
        return end.value.code, "".join(capsys.readouterr())

    return run


def test_all_stages_are_entry_points():
    commands = re.findall(r"python -m (\S+)", (ROOT / "dvc.yaml").read_text() + (ROOT / "Makefile").read_text())
    assert len(commands) > 8 and set(commands) <= set(ENTRY_POINTS)
    assert {"stages.slime", "flows.pipeline", *(module for module, _ in COMMANDS.values())} <= set(ENTRY_POINTS)


@pytest.mark.parametrize("module", ENTRY_POINTS)
def test_help_and_unknown_arguments(module, start):
    code, told = start(module, "--help")
    assert code == 0 and told.startswith(f"usage: python -m {module} ")
    assert len(told.split("options:")[0].split("\n\n")[1]) > 20, "it does not say what it does"
    code, told = start(module, "--no-such-argument")
    assert code == 2 and "error: " in told


@pytest.mark.slow
def test_what_is_measured_on_a_gpu_runs_without_one_too():
    small = [
        "--sizes",
        "2",
        "64",
        "--dialogues",
        "8",
        "--demonstrations",
        "32",
        "--steps",
        "1",
        "--games",
        "1",
        "--rounds",
        "1",
    ]
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu", *small], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(re.findall("update +[0-9]+ tokens/s; gap mean", done.stdout)) == 3
    assert "'reward': " in done.stdout and "1 steps of 8 episodes in" in done.stdout


@pytest.fixture
def make(tmp_path):
    """make(*arguments): runs make with our Makefile in an empty folder; gives exit code and errors."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.txt", "pyproject.toml"):
        (tmp_path / name).touch()

    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(["make", *arguments], cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stderr

    return run


def test_make_names_a_variable_that_it_does_not_know(make):
    code, told = make("--dry-run", "repro", "PROFIL=kuhn")
    assert code == 2 and "no variable PROFIL" in told and "PROFILE" in told
    assert make("--dry-run", "repro", "PROFILE=kuhn")[0] == 0


def test_make_does_not_replace_an_environment_that_another_folder_lends(make, tmp_path):
    other = tmp_path / "elsewhere/.venv"
    (other / "lib").mkdir(parents=True)
    (tmp_path / ".venv").symlink_to(other)
    code, told = make(".venv/installed", f"PYTHON={sys.executable}")
    assert (other / "lib").is_dir() and code == 2 and f"link to {other}" in told
