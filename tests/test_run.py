"""One run with its own parameters: they are in run.yaml, params.yaml is never written; and `make clean` asks first."""

import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import yaml

import flows.workspace
import stages.run
from slim_rl.config import RUN, load_config
from slim_rl.core.errors import UserError
from slim_rl.players.config import Price
from slim_rl.players.ledger import Ledger
from stages import clean, code, games
from stages.workspace import composed_run, sole_run

ROOT = Path(__file__).parents[1]
WHO = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
REPOSITORY = f"git init -q && git {' '.join(WHO)} commit -q --allow-empty -m 0"
ORIGINAL = "games: {kuhn: {seating: [policy, policy]}}  # mine\ntrain: {steps: 3}\n"


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(ORIGINAL)
    for name in ("conf", "stages"):
        (tmp_path / name).symlink_to(ROOT / name)
    yield tmp_path
    assert (tmp_path / "params.yaml").read_text().startswith(ORIGINAL)


def test_a_run_has_its_own_parameters_and_the_next_one_follows_params_yaml(workspace):
    with composed_run("tictactoe", {"train.steps": 7, "slime.directory": "here"}) as config:
        assert list(config.games) == ["tictactoe"]
        assert (config.train.steps, config.train.games_per_step, config.slime.directory) == (7, 256, "here")
        code.main()  # as DVC starts it in this run
        assert load_config() == config and "parameter train.steps 7" in Path("data/code/train.txt").read_text()
    assert load_config() == config, "for `dvc repro --single-item`"
    code.main()  # as a bare `dvc repro` starts it
    assert (list(load_config().games), load_config().train.steps) == (["kuhn"], 3)
    (workspace / "params.yaml").write_text(ORIGINAL + "seed: 5\n")
    code.main()
    assert load_config().seed == 5


def test_a_stage_by_itself_follows_the_last_run_and_what_params_yaml_says_now(workspace):
    with composed_run("kuhn", {"games.kuhn.eval_count": 7, "games.kuhn.train_count": 8}):
        code.main()
    before = Path("data/code/train.txt").read_text()
    (workspace / "params.yaml").write_text(ORIGINAL + "seed: 5\n")
    games.main()  # as `dvc repro --single-item games` starts it
    config = load_config()
    assert (config.seed, config.train.games_per_step, config.games["kuhn"].eval_count) == (5, 64, 7)
    assert len(Path("data/games/evaluate/kuhn.jsonl").read_text().splitlines()) == 7
    assert Path("data/code/train.txt").read_text() != before, "so DVC knows what the stage has read"


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"train.step": 3}, "train.step; did you mean steps?"),
        ({"train.steps.more": 3}, "train.steps.more"),
    ],
)
def test_a_wrong_parameter_is_named_and_the_last_run_stays(parameters, named):
    code.main()
    before = RUN.read_text(), Path("data/code/train.txt").read_text()
    with pytest.raises(UserError, match=named), composed_run(settings=parameters):
        pass
    assert (RUN.read_text(), Path("data/code/train.txt").read_text()) == before


@pytest.mark.parametrize(
    ("lock", "told"),
    [
        ("sole_run(print)", "Another run uses the workspace"),
        ("sole_stage()", "A stage of an earlier run is still at work"),
    ],
)
def test_a_second_run_or_stage_waits_for_the_first(workspace, lock, told):
    code = f"import stages.workspace as w\nwith w.{lock}: pass"
    with eval(f"stages.workspace.{lock}"):
        second = subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True)
        assert second.stdout.readline().startswith(told)
        assert second.poll() is None
    assert second.wait(timeout=60) == 0
    second.stdout.close()


def test_a_folder_that_cannot_be_written_is_a_sentence(workspace):
    (workspace / ".work").touch()  # as nobody else can stop root
    with pytest.raises(UserError, match=r"The folder .* cannot be written"), sole_run(print):
        pass


@pytest.fixture
def fake_dvc(workspace):
    """Puts a module `dvc` into the workspace that records its arguments and the parameters of the run, and then runs `then`;
    in a git repository."""

    def make(then: str) -> None:
        subprocess.run(f"git rev-parse -q HEAD || {{ {REPOSITORY}; }}", shell=True, check=True)
        script = f'echo "$@" > arguments\ncp run.yaml seen.yaml\n{then}\n'
        command = f'subprocess.call(["sh", "-c", {script!r}, "dvc", *sys.argv[1:]])'
        (workspace / "dvc.py").write_text(f"import subprocess, sys\n\nsys.exit({command})\n")

    return make


@pytest.fixture
def run(monkeypatch, capfd):
    """run(*arguments): gives the exit code or sentence of `stages.run`, and what it printed."""

    def start(*arguments: str) -> tuple[int | str, str]:
        monkeypatch.setattr(sys, "argv", ["run", *arguments])
        code = 0
        try:
            stages.run.main()
        except SystemExit as end:
            code = end.code
        return code, capfd.readouterr().out

    return start


def test_the_command_runs_dvc_with_the_profile_and_returns_its_exit_code(workspace, fake_dvc, run):
    fake_dvc("exit 3")
    code, _ = run("kuhn", "--set", "train.steps=10 slime.arguments=[a, b]", "--dvc=--force train")
    assert code == 3 and (workspace / "arguments").read_text() == "repro --force train\n"
    seen = yaml.safe_load((workspace / "seen.yaml").read_text())
    assert seen["train"]["steps"] == 10 and seen["train"]["games_per_step"] == 64
    assert seen["slime"]["arguments"] == ["a", "b"]
    run("--set", "seed=1", "--experiment", "seed-1")
    assert (workspace / "arguments").read_text() == "exp run --temp --name seed-1\n"
    assert yaml.safe_load((workspace / "seen.yaml").read_text())["seed"] == 1


def test_an_experiment_that_has_finished_is_not_run_again_nor_overwritten(workspace, fake_dvc, run):
    """So `make seeds`, started again, goes on with the seeds that are missing."""
    git = partial(subprocess.run, check=True, capture_output=True, text=True)
    git(["git", "init", "-q"])
    git(["git", "add", "params.yaml"])
    git(["git", *WHO, "commit", "-qm", "begin"])
    head = git(["git", "rev-parse", "HEAD"]).stdout.strip()
    ref = f"refs/exps/{head[:2]}/{head[2:]}/seed-1"
    # As DVC keeps an experiment: a commit with a lock that has the digests of the stages' outputs.
    lock = 'echo "stages: {code: {outs: [{path: run.yaml, md5: $(md5sum < run.yaml | cut -c1-32)}]}}" > dvc.lock'
    commit = f"git {' '.join(WHO)} commit-tree $(git write-tree) -p HEAD -m made"
    fake_dvc(f"{lock}\ngit add params.yaml dvc.lock\ngit update-ref {ref} $({commit})\ngit reset -q\nrm dvc.lock")
    experiment = "--set", "seed=1", "--experiment", "seed-1"
    assert run(*experiment)[0] == 0
    (workspace / "arguments").unlink()
    (workspace / "notes.md").write_text("No run reads this.")
    git(["git", "add", "notes.md"])
    code, told = run(*experiment)
    assert code in (0, None) and "seed-1 has finished already" in told
    code, _ = run("--set", "train.steps=9", *experiment)
    assert "There is an experiment seed-1 with other code or parameters" in code
    assert not (workspace / "arguments").exists()


def test_an_experiment_leaves_unfinished_work_and_paid_replies_in_the_workspace(workspace, fake_dvc, run, monkeypatch):
    """DVC runs it in a folder of its own, which it removes at the end; another one after a kill."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code = (
        "from slim_rl.players.services import ledgers; from slim_rl.runtime.code import work_root; "
        "(ledgers() / 'partner').mkdir(parents=True); (work_root() / 'train/0123').mkdir(parents=True)"
    )
    fake_dvc(f'mkdir temporary && cd temporary && {sys.executable} -c "{code}" && cd .. && rm -r temporary')
    assert run("--experiment", "seed-1")[0] == 0
    assert (workspace / ".work/services/partner").is_dir() and (workspace / ".work/train/0123").is_dir()


def test_an_experiment_finds_a_checkpoint_that_git_does_not_know(workspace, monkeypatch):
    (workspace / "mine/model").mkdir(parents=True)
    (workspace / "mine/model/config.json").touch()
    monkeypatch.setattr(stages.workspace.ready, "check", lambda config: None)
    with composed_run(settings={"model.base": "mine/model"}):
        (workspace / "experiment").mkdir()
        monkeypatch.chdir(workspace / "experiment")  # as DVC starts its stages
        with composed_run():
            assert Path("mine/model/config.json").is_file()


@pytest.mark.parametrize("by", ["command", "flow"])
def test_a_stage_finds_the_commands_of_an_environment_that_is_not_activated(workspace, fake_dvc, run, monkeypatch, by):
    fake_dvc('echo "$PATH" > path')
    monkeypatch.setenv("PATH", os.defpath)
    if by == "command":
        run()
    else:
        with composed_run():
            flows.workspace.repro("train", None, print)
    first, *others = (workspace / "path").read_text().strip().split(os.pathsep)
    assert first == str(Path(sys.executable).parent) and os.pathsep.join(others) == os.defpath


@pytest.mark.parametrize("by", ["command", "flow"])
def test_a_stage_that_is_stopped_has_the_time_for_its_slowest_service_to_answer(fake_dvc, run, monkeypatch, by):
    """As its sum with a minute, in which the stage may have to end a server."""
    graces = []
    module = stages.run if by == "command" else flows.workspace
    monkeypatch.setattr(module, "end", lambda process, grace_seconds: graces.append(grace_seconds))
    fake_dvc("exit 0")
    slow = "services.a.timeout_seconds=900 services.b.timeout_seconds=2"
    if by == "command":
        run("--set", slow)
    else:
        with composed_run(settings=dict(stages.run.settings(slow))):
            flows.workspace.repro("train", None, print)
    assert len(graces) == 1 and 900 + 60 < graces[0] < 1200


SURROUNDINGS = {
    "no git": ("mkdir .dvc", [], "is no git repository.* core.no_scm true"),
    "no commit": ("git init -q", ["--experiment", "a"], "needs a commit .* git says: fatal"),
    "another user's": (
        f"{REPOSITORY} && chown -R 65534 .",
        ["--experiment", "a"],
        "git says: .*dubious ownership.* safe.directory",
    ),
}


@pytest.mark.parametrize("case", SURROUNDINGS)
def test_what_git_lacks_is_told_in_a_sentence(run, case, monkeypatch):
    command, arguments, sentence = SURROUNDINGS[case]
    if "chown" in command and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    subprocess.run(command, shell=True, check=True)
    code, _ = run(*arguments)
    assert re.fullmatch(rf"error: .*{sentence}.*", str(code)), code


def test_an_interrupted_run_ends_dvc(workspace, fake_dvc):
    fake_dvc("trap 'sleep 0.5; touch ended; exit 1' TERM\nsleep 60 & wait")
    process = subprocess.Popen([sys.executable, "-m", "stages.run", "kuhn"], stderr=subprocess.PIPE, text=True)
    while not (workspace / "seen.yaml").exists():
        time.sleep(0.05)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert errors.startswith("Interrupted.") and process.returncode == 1
    assert (workspace / "ended").exists()


def test_make_clean_shows_sizes_and_costs_and_removes_only_when_told(workspace, monkeypatch, capsys):
    def told_by(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["clean", *words])
        clean.main()
        return capsys.readouterr().out

    experiments = workspace / ".dvc/tmp/exps/standalone"
    killed, paying = experiments / "tmp0123", experiments / "tmp4567"
    killed.mkdir(parents=True)
    (paying / ".work/services").mkdir(parents=True)
    (paying / ".work/services/partner.jsonl").touch()
    folder, paid = workspace / ".work/evaluate/0123", workspace / ".work/services/partner.jsonl"
    ledger = Ledger(paid, Price(prompt=2, cached_prompt=0.5, completion=8), "evaluate/0123")
    ledger.begin(1_000_000, 0).answered(1_000_000, 0, 0)
    folder.mkdir(parents=True)
    (folder / "shard").write_bytes(bytes(3_000_000))
    told = told_by()
    assert "3.0 MB  $    0.00" in told and ".work/evaluate/0123" in told and "Nothing was removed" in told
    assert "0.0 MB  $    2.00" in told and ".work/services/partner.jsonl" in told
    assert folder.exists() and paid.exists()
    told = told_by("--yes")
    assert "Removed 3.0 MB that cost $0.00." in told and not folder.exists() and not killed.exists() and paying.exists()
    assert "Kept paid replies, 0.0 MB that cost $2.00" in told and paid.exists()
    assert "Removed 0.0 MB that cost $2.00." in told_by("--yes", "--paid") and not paid.exists() and not paying.exists()
