"""The package as pip installs it, outside of the repository; and the command slim-rl."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stages.cli import COMMANDS, main
from tests.test_write_a_game import TINY, blocks
from tests.workspaces import environment

ROOT = Path(__file__).parents[1]


def run(*command, cwd=ROOT, **changes):
    surroundings = {**environment(), **changes}
    return subprocess.run(command, cwd=cwd, env=surroundings, capture_output=True, text=True, timeout=600)


def slim_rl(*arguments, **options):
    return run(sys.executable, "-m", "stages.cli", *arguments, **options)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, installed in a folder of its own without what it depends on."""
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    run("git", "clone", "--quiet", ".", str(source))
    changed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout.split("\0")
    for name in filter(lambda name: name and (ROOT / name).is_file(), changed):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    built = run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    assert built.returncode == 0, built.stderr
    [wheel] = folder.glob("*.whl")
    done = run(*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel))
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_wheel_makes_a_folder_and_runs_a_game_that_lies_in_it(installed, tmp_path):
    there = {"PYTHONPATH": str(installed), "PATH": f"{installed}/bin:{os.environ['PATH']}"}
    made = run("slim-rl", "init", "study", cwd=tmp_path, **there)
    assert made.returncode == 0 and "slim-rl run demo" in made.stdout, made.stderr
    study = tmp_path / "study"
    assert "asking" in run("slim-rl", "profiles", cwd=study, **there).stdout
    (study / "guess.py").write_text(blocks("python")[0])
    games = {"guess": {"train_count": 16, "eval_count": 16}}
    (study / "params.yaml").write_text(yaml.safe_dump({"games": games, "processes": 1, **TINY}))
    done = run("slim-rl", "run", cwd=study, **there)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "guess" in (study / "reports/report.html").read_text() and "report is reports/report.html" in done.stdout
    listed = (study / "data/code/train.txt").read_text()
    assert "module guess " in listed and "module slim_rl.rollout.play " in listed
    again = run("slim-rl", "init", "study", cwd=tmp_path, **there)
    assert again.returncode == 1 and "has params.yaml" in again.stderr and (study / "reports").is_dir()


def test_every_command_has_help_and_an_unknown_one_is_refused():
    listed = slim_rl().stdout
    assert all(re.search(rf"^  {name} ", listed, re.MULTILINE) for name in COMMANDS)
    unknown = slim_rl("traim")
    assert unknown.returncode == 2 and "train" not in COMMANDS and "traim" in unknown.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["slim-rl", command, "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0 and capsys.readouterr().out.startswith("usage: ")


def test_games_profiles_and_parameters_are_listed():
    assert {"matching", "kuhn"} <= {line.split()[0] for line in slim_rl("games").stdout.splitlines()}
    profiles = slim_rl("profiles").stdout.splitlines()
    assert {line.split()[0] for line in profiles} == {path.stem for path in ROOT.glob("conf/*.yaml")}
    parameters = slim_rl("params").stdout
    assert re.search(r"^train\.steps = \d+", parameters, re.MULTILINE) and "Undefined" not in parameters


@pytest.mark.parametrize(
    ("changes", "workspace", "code", "said"),
    [
        ({}, True, 0, r"^ok +params.yaml +plays matching"),
        ({}, False, 0, r"^note +folder +no params.yaml"),
        ({"PATH": "/nowhere"}, True, 0, r"^note +git +not installed"),
        ({"HF_HUB_OFFLINE": "1"}, True, 0, r"^note +offline +HF_HUB_OFFLINE=1"),
        ({"OPENAI_API_KEY": "sk-secret"}, True, 0, r"^ok +keys +OPENAI_API_KEY$"),
    ],
)
def test_the_doctor_tells_what_is_there_and_what_is_missing(tmp_path, changes, workspace, code, said):
    told = slim_rl("doctor", cwd=ROOT if workspace else tmp_path, PYTHONPATH=str(ROOT), **changes)
    assert told.returncode == code and re.search(said, told.stdout, re.MULTILINE), told.stdout + told.stderr
    assert "sk-secret" not in told.stdout


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_the_doctor_in_a_container_that_may_not_make_namespaces():
    container = ["bwrap", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/"]
    told = run(*container, sys.executable, "-m", "stages.cli", "doctor", PYTHONPATH=str(ROOT))
    assert told.returncode == 0 and re.search(
        r"^ok +sandbox .* may not make namespaces here$", told.stdout, re.MULTILINE
    )
