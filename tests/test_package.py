"""The package as pip installs it, outside of the repository; and the command slim-rl."""

import json
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
def test_the_wheel_has_the_files_that_the_code_opens(installed):
    beside = [path for path in (ROOT / "slim_rl").rglob("*") if path.suffix in (".j2", ".js", ".css", ".yaml")]
    assert beside and [path for path in beside if not (installed / path.relative_to(ROOT)).exists()] == []


@pytest.mark.slow
def test_the_wheel_makes_a_folder_and_runs_a_game_that_lies_in_it(installed, tmp_path):
    there = {"PYTHONPATH": str(installed), "PATH": f"{installed}/bin:{os.environ['PATH']}"}
    made = run("slim-rl", "init", "study", cwd=tmp_path, **there)
    assert made.returncode == 0 and "slim-rl run demo" in made.stdout, made.stderr
    study = tmp_path / "study"
    assert "asking" in run("slim-rl", "profiles", cwd=study, **there).stdout
    (study / "guess.py").write_text(blocks("python")[0])
    games = {"guess": {"train_count": 16, "eval_count": 16}}
    (study / "params.yaml").write_text(yaml.safe_dump({"games": games, **TINY}))
    done = run("slim-rl", "run", cwd=study, **there)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0 <= json.loads((study / "reports/metrics.json").read_text())["trained"]["pass_rate"] <= 1
    assert "guess" in (study / "reports/report.html").read_text() and "report is reports/report.html" in done.stdout
    listed = (study / "data/code/train.txt").read_text()
    assert "module guess " in listed and "module slim_rl.rollout.play " in listed
    again = run("slim-rl", "init", "study", cwd=tmp_path, **there)
    assert again.returncode == 1 and "has params.yaml" in again.stderr and (study / "reports").is_dir()


@pytest.fixture
def slim_rl(monkeypatch, capsys):
    """slim_rl(*words): runs the command in this process; gives its exit code and what it printed."""

    def command(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["slim-rl", *words])
        monkeypatch.setattr(sys, "path", [*sys.path])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return code, "".join(capsys.readouterr())

    return command


def test_every_command_is_listed_and_an_unknown_one_is_refused(slim_rl):
    code, listed = slim_rl()
    assert code == 0 and all(re.search(rf"^  {name} ", listed, re.MULTILINE) for name in COMMANDS)
    code, told = slim_rl("params", "--help")
    assert code == 0 and told.startswith("usage: ")
    code, told = slim_rl("traim")
    assert code == 2 and "train" not in COMMANDS and "traim" in told


def test_games_profiles_and_parameters_are_listed(slim_rl, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    games, profiles, parameters = (slim_rl(what)[1] for what in ("games", "profiles", "params"))
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    Path("conf/mine.yaml").write_text("games: {kuhn: {}}\n")
    assert slim_rl("profiles")[1].split() == ["mine"]
    assert {"matching", "kuhn"} <= {line.split()[0] for line in games.splitlines()}
    assert {line.split()[0] for line in profiles.splitlines()} == {path.stem for path in ROOT.glob("conf/*.yaml")}
    assert re.search(r"^train\.steps = \d+", parameters, re.MULTILINE) and "Undefined" not in parameters


@pytest.mark.parametrize(
    ("command", "where", "sentence"),
    [
        ("compare", "made by init", "made by init is no git repository in which DVC keeps experiments.* `git init`"),
        ("compare", "", "is no git repository in which DVC keeps experiments.*slim-rl init"),
        ("profiles", "", "has no profiles in conf/.*slim-rl init"),
    ],
)
def test_a_folder_that_lacks_what_a_command_needs_is_told_in_a_sentence(
    slim_rl, tmp_path, monkeypatch, command, where, sentence
):
    monkeypatch.chdir(tmp_path)
    assert slim_rl("init", "made by init")[0] == 0
    monkeypatch.chdir(tmp_path / where)
    told, _ = slim_rl(command)
    assert re.fullmatch(rf"error: .*{sentence}.*", str(told)), told


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
def test_the_doctor_tells_what_is_there_and_what_is_missing(
    slim_rl, tmp_path, monkeypatch, changes, workspace, code, said
):
    monkeypatch.chdir(ROOT if workspace else tmp_path)
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    ended, told = slim_rl("doctor")
    assert ended == code and re.search(said, told, re.MULTILINE), told
    assert "sk-secret" not in told


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_the_doctor_in_a_container_that_may_not_make_namespaces():
    container = ["bwrap", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/"]
    told = run(*container, sys.executable, "-m", "stages.cli", "doctor", PYTHONPATH=str(ROOT))
    assert told.returncode == 0 and re.search(
        r"^ok +sandbox .* may not make namespaces here$", told.stdout, re.MULTILINE
    )
