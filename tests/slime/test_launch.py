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

import stages.analyze
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
from slim_rl.slime.identity import announce
from slim_rl.slime.parameters import PARAMETERS, RunParameters
from slim_rl.slime.sbatch import sbatch
from slim_rl.training.checkpoint import save_model
from stages.train import run_parameters
from tests.settings import merged
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
    (tmp_path / "slime/train_async.py").write_text("")
    (tmp_path / "slime/setup.py").write_text('setup(version="0.3.1")')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config_of(games=MATCHING, steps=3, **slime):
    train = {"backend": "slime", "steps": steps}
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
        run(parameters_of(steps=60))
    assert (tracker.read_text() if tracker.exists() else None) == goes_on_from


def test_a_run_is_made_longer_but_not_shorter(workspace):
    for step in (19, 39):
        (Path("run/hf") / str(step)).mkdir(parents=True)
        (Path("run/hf") / str(step) / "model.safetensors.index.json").touch()
        state = Path(f"run/megatron/rollout/global_dataset_state_dict_{step}.pt")
        state.parent.mkdir(parents=True, exist_ok=True)
        state.touch()

    assert run(parameters_of(steps=60)) == workspace / "run/hf/59"
    Path("slime/train.py").write_text("raise SystemExit(3)")
    assert run(parameters_of(steps=20)) == workspace / "run/hf/19"  # it is there
    with pytest.raises(UserError, match=r"train\.steps is 30, but the run .* has 60 steps already.*20, 40, 60"):
        run(parameters_of(steps=30))


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
    assert variables["SLIM_RL_WORK"] == str(workspace / ".work")  # wherever Ray starts them
    paths = variables["PYTHONPATH"].split(":")
    assert {str(workspace / "slime"), str(workspace), str(workspace / "mine"), str(ROOT)} < set(paths)


def test_a_cluster_that_is_there_gets_a_job(workspace, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    for parameters in (parameters_of(ray_address="http://head:8265"), parameters_of()):
        words = launch.whole_command(parameters, Path("models/base"), Path("run"))
        ray = [sys.executable, "-m", "ray.scripts.scripts"]
        assert words[:7] == [*ray, "job", "submit", "--address", "http://head:8265"]
        assert "sk-secret" not in " ".join(words)
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://head:8265")


RAY = """#!/bin/bash
# Ray's command line: a log in four parts, of which each connection sees one more before it breaks.
verb=$4 name=${@: -1}
echo "$verb" >>calls
seen=$(grep -c logs calls)
case "$verb" in
    submit) echo "$*" >submitted ;;
    status)
        if [ "$seen" -lt 4 ]; then echo "Status for job '$name': RUNNING"; else echo "Job '$name' succeeded"; fi ;;
    logs)
        for part in $(seq "$seen"); do echo "part $part"; done
        if [ "$seen" -lt 4 ]; then echo "WebSocket connection closed unexpectedly" >&2; exit 1; fi
        python3 leaves.py "$(sed -n 's/.*--save-hf //p' submitted | cut -d ' ' -f 1)" ;;
esac
"""


@pytest.fixture
def cluster(workspace):
    """The parameters of a run on a cluster, which is a script."""
    Path("ray").write_text(RAY)
    Path("ray").chmod(0o755)
    Path("leaves.py").write_text(
        f"import sys; sys.argv += ['--num-rollout', '3', '--save-hf', sys.argv[1]]\n{LEAVES_A_CHECKPOINT}"
    )
    return parameters_of(ray_address="http://head:8265", python=str(workspace / "ray"))


def calls():
    return Path("calls").read_text().split()


def test_a_broken_connection_to_the_log_does_not_end_the_job(workspace, cluster, capfdbinary):
    """Ray's client then exits with 1, and the job runs on. A new connection sends the log from its beginning."""
    assert run(cluster) == workspace / "run/hf/2"
    assert [call for call in calls() if call != "status"] == ["submit", *["logs"] * 4]
    shown = capfdbinary.readouterr().out.decode()
    assert [line for line in shown.splitlines() if line.startswith("part")] == [f"part {n}" for n in range(1, 5)]


def test_a_job_that_nobody_follows_any_more_is_followed_again(workspace, cluster):
    """The process that submitted it was killed."""
    Path("run").mkdir()
    Path("run/job.txt").write_text("slim-rl-before")
    Path("submitted").write_text(f"--save-hf {workspace}/run/hf/{{rollout_id}}")
    assert run(cluster) == workspace / "run/hf/2"
    assert "submit" not in calls() and "stop" not in calls()


def test_a_job_is_stopped_when_we_are_told_to_end(workspace, cluster, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("slim_rl.slime.job.Job._show_log", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(cluster)
    assert calls() == ["submit", "stop"]


@pytest.mark.parametrize(
    ("setup", "sentence"),
    [
        ('setup(version="0.4.0")', "is version 0.4.0, but the hooks are made for 0.3.1"),
        (None, "slime.directory is .*has no train_async.py"),
    ],
)
def test_another_version_of_slime_is_told_before_anything_starts(workspace, setup, sentence):
    if setup is None:
        Path("slime/train_async.py").unlink()
    else:
        Path("slime/setup.py").write_text(setup)
    with pytest.raises(UserError, match=sentence):
        run(parameters_of())
    assert not Path("run").exists()


def test_a_python_that_is_not_there(workspace):
    with pytest.raises(UserError, match=r"slime\.python is no-such-python"):
        run(parameters_of(python="no-such-python"))


ASYNC = {"colocate": False, "rollout_gpus": 4}


@pytest.mark.parametrize(
    ("mode", "script"), [("sync", "train"), ("async", "train_async"), ("fully_async", "train_async")]
)
def test_a_mode_is_a_script_of_slimes(workspace, mode, script):
    words = launch.command(parameters_of(mode=mode, **ASYNC), Path("models/base"), Path("run"))
    assert words[1] == str(workspace / f"slime/{script}.py") and "--colocate" not in words
    assert ("slim_rl.slime.fully_async.generate_rollout" in words) == (mode == "fully_async")


@pytest.mark.parametrize(
    ("slime", "sentence"),
    [
        ({"mode": "async"}, "slime.mode: async needs slime.colocate: false"),
        ({"mode": "fully_async", "evaluate_every": 5, **ASYNC}, "cannot evaluate in between"),
    ],
)
def test_a_mode_says_what_it_needs(slime, sentence):
    with pytest.raises(ValueError, match=sentence):
        config_of(**slime)


def test_a_flag_of_ours_is_taken_back(workspace):
    flags = flags_of(arguments=["--no-balance-data", "--no-load-optim", "--no-router-policy"])
    assert not {"--balance-data", "--no-balance-data", "--router-policy", "--no-router-policy"} & flags.keys()
    assert {"--no-load-optim", "--recompute-method"} <= flags.keys()  # the first is Megatron's
    assert "--use-rollout-logprobs" in flags
    assert "--use-rollout-logprobs" not in flags_of(arguments=["--use-tis"])  # SLIME refuses both together


def test_a_flag_of_the_users_stands_in_for_ours(workspace):
    """PyPI's router refuses the value of ours even if another one follows."""
    words = arguments(parameters_of(arguments=["--router-policy", "manual"]), Path("models/base"), Path("/run"))
    assert words.count("--router-policy") == 1 and words[-2:] == ["--router-policy", "manual"]


def test_the_slurm_script_asks_for_the_nodes_and_is_sound(workspace):
    parameters = parameters_of(nodes=2, colocate=False, rollout_gpus=12)
    script = sbatch(parameters, "qwen3-4b-8gpu")
    assert "#SBATCH --nodes=4" in script and "#SBATCH --gpus-per-node=8" in script and "#SBATCH --requeue" in script
    assert "repro PROFILE=qwen3-4b-8gpu\n" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    pyxis = sbatch(parameters, None, pyxis_image="slimerl/slime:latest")
    assert pyxis.count("--container-image=slimerl/slime:latest") == 2  # the head, and the other nodes
    apptainer = sbatch(parameters, None, apptainer_image="my slime.sif")
    assert apptainer.count(f"apptainer exec --nv --bind {ROOT}:{ROOT} 'my slime.sif'") == 2


LEAVES_A_TRAINING = f"""
import pathlib, shutil, sys, yaml
from slim_rl.core.episode import Episode
from slim_rl.rollout.shards import write_shard
from slim_rl.slime.progress import note_metrics
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
    note_metrics(folder, step, {{"held_out/reward": step / 5, "held_out/env/matching/reward": step / 5}})
    note_metrics(folder, step, {{"reward": step / 10, "all/reward": 0.0}})
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
    assert curve == ["step", "avg_batch_reward", "0", "0.0", "1", "0.1", "2", "0.2"]
    (game,) = load_games(config_of().games, 0).values()
    (table,) = stages.analyze.held_out(game).values()  # the report shows it
    assert table.to_dict("list") == {"step": [0, 1, 2], "reward": [0.0, 0.2, 0.4]}


@pytest.fixture
def begun(workspace, games_file, tokenizer, monkeypatch):
    """A function that says which run some parameters belong to, and what is said of it."""
    tokenizer.save_pretrained("models/base")

    def begin(**changes):
        config = Config.model_validate(merged(config_of().model_dump(mode="json"), changes))
        folder = stages.train.work(config, load_games(config.games, config.seed))
        return folder, announce(folder, stages.train.slime_inputs(config))

    return begin


def test_what_does_not_change_the_episodes_or_updates_does_not_begin_a_new_run(begun):
    folder, told = begun()
    assert told == f"A run begins in {folder}."
    service = {"model": "gpt-4.1", "max_requests_per_minute": 10, "max_cost_dollars": 5.0}
    for changes in (
        {"train": {"steps": 600, "checkpoint_every": 7, "checkpoint_minutes": 5, "microbatch_tokens": 100}},
        {"threads": 8, "processes": 2, "concurrency": 16},
        {"slime": {"save_every": 5, "evaluate_every": 3, "max_tokens_per_gpu": 1000, "arguments": ["--lr", "1"]}},
    ):
        assert begun(**changes) == (folder, f"The run in {folder} goes on.")
    paid, _ = begun(services={"partner": service})
    faster = {**service, "max_requests_per_minute": 1000, "max_cost_dollars": 50.0}
    assert begun(services={"partner": faster})[0] == paid != folder


def test_what_begins_a_new_run_is_named(begun):
    folder, _ = begun()
    new, told = begun(train={"learning_rate": 1e-6, "steps": 7}, games={"matching": {"max_turns": 9}})
    assert new != folder and str(folder) in told
    assert "games.matching.max_turns is 9 and was 20; train.learning_rate is 1e-06 and was 0.0002." in told
    assert "steps" not in told
