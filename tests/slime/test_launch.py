"""Our parameters as SLIME's command, and the run of it. A script that leaves what SLIME leaves stands in for SLIME."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import stages.slime
import stages.train
from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.engines.model import load_model
from slim_rl.games import load_games
from slim_rl.rollout.shards import read_episodes
from slim_rl.rollout.tasks import tasks_path, write_tasks
from slim_rl.runtime.process import wait_until
from slim_rl.slime import launch
from slim_rl.slime.arguments import arguments
from slim_rl.slime.parameters import PARAMETERS, RunParameters
from slim_rl.training.checkpoint import save_model
from stages.train import run_parameters
from tests.slime.support import QWEN, ROOT

MATCHING = {"matching": {"seating": ["policy", "scripted"]}}
TASKS = {"matching": [Task("g", "prompt", {"table": [1]})]}
FLAG = "flag = lambda name: sys.argv[sys.argv.index(name) + 1]\n"
LEAVES_A_CHECKPOINT = f"""
import pathlib, sys
{FLAG}
last = int(flag("--num-rollout")) - 1
folder = pathlib.Path(flag("--save-hf").format(rollout_id=last))
folder.mkdir(parents=True)
(folder / "model.safetensors.index.json").write_text("{{}}")
state = folder.parents[1] / f"megatron/rollout/global_dataset_state_dict_{{last}}.pt"
state.parent.mkdir(parents=True, exist_ok=True)
state.touch()
"""
STAYS = """
import os, pathlib, time
pathlib.Path("started").write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    (tmp_path / "models/base").mkdir(parents=True)
    (tmp_path / "models/base/config.json").write_text(json.dumps(QWEN))
    (tmp_path / "slime").mkdir()
    (tmp_path / "slime/train.py").write_text(LEAVES_A_CHECKPOINT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config_of(games=MATCHING, **slime):
    train = {"backend": "slime", "steps": 3}
    slime = {"directory": "slime", "python": sys.executable, **slime}
    return Config.model_validate({"games": games, "train": train, "slime": slime})


def parameters_of(**given):
    return run_parameters(config_of(**given))


def run(parameters):
    return launch.run(parameters, Path("models/base"), TASKS, TASKS, Path("run"))


def flags_of(**given):
    words = arguments(parameters_of(**given), Path("models/base"), Path("/run"))
    return dict(zip(words, [*words[1:], ""], strict=True))


def test_parameters_become_slimes_flags(workspace):
    flags = flags_of(nodes=2, tensor_parallel=4, arguments=["--lr", "9"])
    assert flags["--num-layers"] == "3" and flags["--actor-num-nodes"] == "2"
    assert flags["--sequence-parallel"].startswith("--") and flags["--num-rollout"] == "3"
    assert "--colocate" in flags and "--use-kl-loss" not in flags and "--use-fault-tolerance" in flags
    assert flags["--lr"] == "9"  # the user's own arguments come last


def test_slime_cannot_repair_engines_that_it_did_not_start(workspace):
    assert "--use-fault-tolerance" not in flags_of(arguments=["--rollout-external-engine-addrs", "a:1"])


def test_slimes_buffer_is_not_asked_to_keep_episodes_of_several_policies(workspace):
    games = {"matching": {"seating": ["policy", "policy"]}}
    with pytest.raises(UserError, match="--partial-rollout"):
        flags_of(games=games, arguments=["--partial-rollout"])


def test_a_run_leaves_the_last_checkpoint_and_what_the_hooks_read(workspace):
    assert run(parameters_of()) == workspace / "run/hf/2"
    hooks = yaml.safe_load(Path("run/hooks.yaml").read_text())
    assert hooks == {"slim_rl_folder": str(workspace / "run"), "slim_rl_home": str(workspace)}
    read = RunParameters.read(Path("run", PARAMETERS))
    assert read == parameters_of() and read.games["matching"].size == 3
    lines = [json.loads(line) for line in Path("run/train.jsonl").read_text().splitlines()]
    assert lines == [
        {
            "prompt": "prompt",
            "game_id": "g",
            "metadata": {"task": {"game": "matching", "place": 0, "state": {"table": [1]}}},
        }
    ]


def test_several_games_come_by_weight_until_every_task_has_come(workspace):
    games = {"matching": {**MATCHING["matching"], "weight": 2}, "kuhn": {"seating": ["policy", "policy"]}}
    tasks = {name: [Task(f"{name}-{n}") for n in range(count)] for name, count in (("matching", 3), ("kuhn", 2))}
    launch.prepare(parameters_of(games=games), tasks, tasks, Path("run"))
    train, held_out = (
        [json.loads(line) for line in Path("run", f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "held_out")
    )
    assert [line["game_id"] for line in train] == [
        "matching-0", "matching-1", "kuhn-0", "matching-2", "matching-0", "kuhn-1",
    ]  # fmt: skip
    assert [line["metadata"]["task"]["place"] for line in train] == [0, 1, 0, 2, 3, 1]
    assert [line["game_id"] for line in held_out] == [
        "matching-0",
        "matching-1",
        "matching-2",
        "kuhn-0",
        "kuhn-1",
    ]


def test_a_game_of_little_weight_does_not_multiply_the_tasks(workspace):
    games = {"matching": {**MATCHING["matching"], "weight": 1000}, "kuhn": {"seating": ["policy", "policy"]}}
    tasks = {name: [Task(f"{name}-{n}") for n in range(50)] for name in ("matching", "kuhn")}
    parameters = parameters_of(games=games)
    launch.prepare(parameters, tasks, tasks, Path("run"))
    trained_on = parameters.train.steps * parameters.train.games_per_step
    lines = Path("run/train.jsonl").read_text().splitlines()
    assert trained_on < len(lines) <= 4 * trained_on  # the filters drop some; SLIME starts again from the first


def test_a_run_that_fails_is_told_in_a_sentence(workspace):
    Path("slime/train.py").write_text("raise SystemExit(3)")
    with pytest.raises(UserError, match=r"exit code 3 before step 3 was saved.*continues from its last checkpoint"):
        run(parameters_of())


@pytest.mark.parametrize(("whole", "goes_on_from"), [([19], "19"), ([], None), ([19, 39], "39")])
def test_a_run_killed_while_it_saved_goes_on_from_the_last_whole_checkpoint(workspace, whole, goes_on_from):
    """Megatron says 39 is there; its Hugging Face checkpoint is not always whole."""
    folder = Path("run")
    (folder / "megatron/rollout").mkdir(parents=True)
    tracker = folder / "megatron/latest_checkpointed_iteration.txt"
    tracker.write_text("39")
    for step in (19, 39):
        (folder / f"hf/{step}").mkdir(parents=True)
        if step in whole:
            (folder / f"hf/{step}/model.safetensors.index.json").touch()
            (folder / f"megatron/rollout/global_dataset_state_dict_{step}.pt").touch()
    Path("slime/train.py").write_text("raise SystemExit(3)")
    with pytest.raises(UserError):
        run(parameters_of())
    assert (tracker.read_text() if tracker.exists() else None) == goes_on_from


def test_without_slimes_source_the_sentence_says_how_to_get_it(workspace):
    Path("slime/train.py").unlink()
    with pytest.raises(UserError, match=r"git clone --branch v0\.3\.1"):
        run(parameters_of())


def test_a_model_that_config_json_does_not_describe(workspace):
    Path("models/base/config.json").write_text(json.dumps({**QWEN, "model_type": "qwen3_moe"}))
    with pytest.raises(UserError, match=r"a 'qwen3_moe' model.*scripts/models"):
        flags_of()


def test_an_interrupted_run_ends_what_it_started_and_nothing_else(workspace):
    Path("slime/train.py").write_text(STAYS)
    parameters_of().write(Path(PARAMETERS))
    code = (
        "from pathlib import Path; from slim_rl.slime import launch; from slim_rl.slime.parameters import *\n"
        "from slim_rl.runtime.cli import told_in_a_sentence\n"
        f"parameters = RunParameters.read(Path({PARAMETERS!r}))\n"
        "with told_in_a_sentence(): launch.run(parameters, Path('models/base'), {}, {}, Path('run'))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)})
    started = Path("started")
    assert wait_until(lambda: started.exists() and started.read_text() != "", 60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


@pytest.fixture
def games_file(workspace):
    (game,) = load_games(config_of().games, 0).values()
    for purpose in ("train", "evaluate"):
        write_tasks(tasks_path(Path("data/games"), game, purpose), game.taskset.tasks(purpose, 8))


def test_a_dry_run_prints_a_command_that_can_be_pasted(workspace, games_file, monkeypatch, capsys):
    Path("params.yaml").write_text(yaml.safe_dump(config_of().model_dump(mode="json")))
    monkeypatch.setattr(sys, "argv", ["slime", "--dry-run"])
    stages.slime.main()
    shown = capsys.readouterr().out
    words = shlex.split(shown)
    assert words[words.index("--hf-checkpoint") + 1] == str(workspace / "models/base")
    assert len(Path(words[words.index("--prompt-data") + 1]).read_text().splitlines()) == 8
    subprocess.run(["bash", "-c", shown], check=True)  # the script in SLIME's place takes it
    assert Path(".work/slime/dry-run/hf/2/model.safetensors.index.json").exists()


def test_slimes_processes_find_the_users_modules_and_the_ledgers(workspace, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "mine")
    variables = launch.environment(parameters_of())
    assert variables["SLIM_RL_SERVICES"] == str(workspace / ".work/services")  # wherever Ray starts them
    paths = variables["PYTHONPATH"].split(":")
    assert {str(workspace / "slime"), str(workspace), str(workspace / "mine"), str(ROOT)} < set(paths)


def test_a_cluster_that_is_there_gets_a_job(workspace, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    for parameters in (parameters_of(ray_address="http://head:8265"), parameters_of()):
        words = launch.command(parameters, ["--x"], "job-1")
        ray = [sys.executable, "-m", "ray.scripts.scripts"]
        assert words[:7] == [*ray, "job", "submit", "--address", "http://head:8265"]
        assert "sk-secret" not in " ".join(words)
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://head:8265")


RAY = """#!/bin/bash
echo "$4 $*" >>calls
case "$4" in
    submit) exit 1 ;;
    status) echo "Status for job: RUNNING" ;;
    logs) python3 leaves.py "$(sed -n 's/.*--save-hf //p' calls | cut -d ' ' -f 1)" ;;
esac
"""


def test_a_broken_connection_to_the_log_does_not_end_the_job(workspace):
    """Ray's client then exits with 1, and the job runs on."""
    Path("ray").write_text(RAY)
    Path("ray").chmod(0o755)
    Path("leaves.py").write_text(
        f"import sys; sys.argv += ['--num-rollout', '3', '--save-hf', sys.argv[1]]\n{LEAVES_A_CHECKPOINT}"
    )
    parameters = parameters_of(ray_address="http://head:8265", python=str(workspace / "ray"))
    assert run(parameters) == workspace / "run/hf/2"
    assert [line.split()[0] for line in Path("calls").read_text().splitlines()] == [
        "submit",
        "status",
        "logs",
    ]


def test_the_slurm_script_asks_for_the_nodes_and_is_sound(workspace):
    parameters = parameters_of(nodes=2, colocate=False, rollout_gpus=12)
    script = launch.sbatch(parameters, "qwen3-4b-8gpu")
    assert "#SBATCH --nodes=4" in script and "#SBATCH --gpus-per-node=8" in script
    assert "repro PROFILE=qwen3-4b-8gpu\n" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


LEAVES_A_TRAINING = f"""
import pathlib, shutil, sys, yaml
from slim_rl.core.episode import Episode
from slim_rl.rollout.shards import write_shard
{FLAG}
last = int(flag("--num-rollout")) - 1
shutil.copytree(flag("--hf-checkpoint"), flag("--save-hf").format(rollout_id=last))
folder = pathlib.Path(yaml.safe_load(open(flag("--custom-config-path")))["slim_rl_folder"])
(folder / f"hf/{{last}}/model.safetensors.index.json").touch()
(folder / "megatron/rollout").mkdir(parents=True)
(folder / f"megatron/rollout/global_dataset_state_dict_{{last}}.pt").touch()
for step in range(last + 1):
    episode = Episode(f"e{{step}}", "g", step=step, rewards={{"player-1": step / 10}})
    write_shard(folder / f"rollouts/step-{{step:05d}}/00000.parquet", [episode])
"""


def test_the_train_stage_leaves_what_the_local_backend_leaves(workspace, games_file, model, tokenizer):
    shutil.rmtree("models/base")
    save_model(Path("models/base"), model, tokenizer)
    Path("slime/train.py").write_text(LEAVES_A_TRAINING)
    Path("params.yaml").write_text(yaml.safe_dump(config_of().model_dump(mode="json")))
    stages.train.main()
    trained, _ = load_model(Path("models/trained"))
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), model.parameters(), strict=True))
    assert [e.step for e in read_episodes(Path("data/rollouts"))] == [0, 1, 2]
    curve = Path("reports/training/plots/metrics/reward/avg_batch_reward.tsv").read_text().split()
    assert curve[-1] == "0.2"
