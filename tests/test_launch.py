"""Our parameters as SLIME's command, and the run of it; SLIME itself is a script that leaves what SLIME leaves."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from slim_rl.config import Config
from slim_rl.engines.model import load_model
from slim_rl.errors import UserError
from slim_rl.rollout.store import read_episodes
from slim_rl.slime import launch
from slim_rl.training.checkpoint import save_model

ROOT = Path(__file__).parents[1]
QWEN = {
    "model_type": "qwen3",
    "num_hidden_layers": 3,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": {"rope_theta": 10000.0},
    "rms_norm_eps": 1e-6,
    "vocab_size": 429,
    "tie_word_embeddings": False,
}
LEAVES_A_CHECKPOINT = """
import pathlib, sys
saved = sys.argv[sys.argv.index("--save-hf") + 1]
last = int(sys.argv[sys.argv.index("--num-rollout") + 1]) - 1
folder = pathlib.Path(saved.format(rollout_id=last))
folder.mkdir(parents=True)
(folder / "model.safetensors.index.json").write_text("{}")
state = folder.parents[1] / f"megatron/rollout/global_dataset_state_dict_{last}.pt"
state.parent.mkdir(parents=True, exist_ok=True)
state.touch()
"""
STAYS = """
import os, pathlib, time
pathlib.Path(os.environ["STARTED"]).write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "models/base").mkdir(parents=True)
    (tmp_path / "models/base/config.json").write_text(json.dumps(QWEN))
    (tmp_path / "slime").mkdir()
    (tmp_path / "slime/train.py").write_text(LEAVES_A_CHECKPOINT)
    return tmp_path


def config_of(workspace, **slime):
    return Config.model_validate(
        {"train": {"backend": "slime", "steps": 3}, "slime": {"directory": str(workspace / "slime"), **slime}}
    )


def run(workspace, config):
    paths = [workspace / name for name in ("models/base", "train.jsonl", "evaluate.jsonl", "run")]
    return launch.run(config, *paths)


def flags_of(workspace, **slime):
    config = config_of(workspace, **slime)
    words = launch.arguments(config, workspace / "models/base", Path("t"), Path("e"), Path("/run"))
    return dict(zip(words, [*words[1:], ""], strict=True))


def test_parameters_become_slimes_flags(workspace):
    flags = flags_of(workspace, nodes=2, tensor_parallel=4, arguments=["--lr", "9"])
    assert flags["--num-layers"] == "3" and flags["--actor-num-nodes"] == "2"
    assert flags["--sequence-parallel"].startswith("--") and flags["--num-rollout"] == "3"
    assert "--colocate" in flags and "--use-kl-loss" not in flags
    assert flags["--lr"] == "9"  # the user's own arguments have the last word


def test_external_engines_take_the_place_of_slimes(workspace):
    flags = flags_of(workspace, external_engines=["a:1", "b:2"])
    assert flags["--rollout-external-engine-addrs"] == "a:1" and "--colocate" not in flags


def test_a_run_leaves_the_last_checkpoint_and_what_the_hooks_read(workspace):
    checkpoint = run(workspace, config_of(workspace))
    assert checkpoint == workspace / "run/hf/2"
    hooks = yaml.safe_load((workspace / "run/hooks.yaml").read_text())
    assert Config.model_validate(yaml.safe_load(Path(hooks["slim_rl_params"]).read_text())).train.steps == 3


def test_a_run_that_fails_is_told_in_a_sentence(workspace):
    (workspace / "slime/train.py").write_text("raise SystemExit(3)")
    with pytest.raises(
        UserError, match=r"exit code 3 before step 3 was saved.*goes on from its last checkpoint"
    ):
        run(workspace, config_of(workspace))


@pytest.mark.parametrize(("whole", "goes_on_from"), [([19], "19"), ([], None), ([19, 39], "39")])
def test_a_run_killed_while_it_saved_goes_on_from_the_last_whole_checkpoint(workspace, whole, goes_on_from):
    """Megatron says 39 is there; its Hugging Face checkpoint is not always whole."""
    folder = workspace / "run"
    (folder / "megatron/rollout").mkdir(parents=True)
    (folder / "megatron/latest_checkpointed_iteration.txt").write_text("39")
    for step in (19, 39):
        (folder / f"hf/{step}").mkdir(parents=True)
        if step in whole:
            (folder / f"hf/{step}/model.safetensors.index.json").touch()
            (folder / f"megatron/rollout/global_dataset_state_dict_{step}.pt").touch()
    (workspace / "slime/train.py").write_text("raise SystemExit(3)")
    with pytest.raises(UserError):
        run(workspace, config_of(workspace))
    tracker = folder / "megatron/latest_checkpointed_iteration.txt"
    assert (tracker.read_text() if tracker.exists() else None) == goes_on_from


def test_without_slimes_source_the_sentence_says_how_to_get_it(workspace):
    (workspace / "slime/train.py").unlink()
    with pytest.raises(UserError, match=r"git clone --branch v0\.3\.1"):
        run(workspace, config_of(workspace))


def test_a_model_that_config_json_does_not_describe(workspace):
    (workspace / "models/base/config.json").write_text(json.dumps({**QWEN, "model_type": "qwen3_moe"}))
    with pytest.raises(UserError, match=r"a 'qwen3_moe' model.*scripts/models"):
        flags_of(workspace)


def test_an_interrupted_run_ends_what_it_started_and_nothing_else(workspace):
    (workspace / "slime/train.py").write_text(STAYS)
    (workspace / "params.yaml").write_text(yaml.safe_dump(config_of(workspace).model_dump(mode="json")))
    code = (
        "from pathlib import Path; from slim_rl.config import load_config; from slim_rl.slime import launch\n"
        "launch.run(load_config(), *map(Path, ('models/base', 't', 'e', 'run')))"
    )
    started = workspace / "started"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "STARTED": str(started)}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=workspace, env=env)
    while not (started.exists() and started.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_a_dry_run_prints_a_command_that_can_be_pasted(workspace):
    params = {"train": {"backend": "slime", "steps": 3}, "slime": {"directory": "slime"}}
    (workspace / "params.yaml").write_text(yaml.safe_dump(params))
    command = [sys.executable, "-m", "slim_rl.slime.launch", "--dry-run"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True, check=True).stdout
    words = shlex.split(shown)
    assert words[words.index("--hf-checkpoint") + 1] == str(workspace / "models/base")
    subprocess.run(["bash", "-c", shown], check=True)  # the script in SLIME's place takes it
    assert (workspace / ".work/slime/dry-run/hf/2/model.safetensors.index.json").exists()


def test_a_cluster_that_is_there_gets_a_job(workspace, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    for config in (config_of(workspace, ray_address="http://head:8265"), config_of(workspace)):
        words = launch.command(config, ["--x"], "job-1")
        ray = ["python3", "-m", "ray.scripts.scripts"]
        assert words[:7] == [*ray, "job", "submit", "--address", "http://head:8265"]
        assert "sk-secret" not in " ".join(words)
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://head:8265")


def test_the_slurm_script_asks_for_the_nodes_and_is_sound(workspace):
    script = launch.sbatch(config_of(workspace, nodes=2, colocate=False, rollout_gpus=12))
    assert "#SBATCH --nodes=4" in script and "#SBATCH --gpus-per-node=8" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


LEAVES_A_TRAINING = """
import pathlib, shutil, sys, yaml
from slim_rl.rollout.episode import Episode
from slim_rl.rollout.store import write_shard
flag = lambda name: sys.argv[sys.argv.index(name) + 1]
last = int(flag("--num-rollout")) - 1
shutil.copytree(flag("--hf-checkpoint"), flag("--save-hf").format(rollout_id=last))
folder = pathlib.Path(yaml.safe_load(open(flag("--custom-config-path")))["slim_rl_folder"])
(folder / f"hf/{last}/model.safetensors.index.json").touch()
(folder / "megatron/rollout").mkdir(parents=True)
(folder / f"megatron/rollout/global_dataset_state_dict_{last}.pt").touch()
for step in range(last + 1):
    episode = Episode(f"e{step}", "g", step=step, rewards={"player-1": step / 10})
    write_shard(folder / f"rollouts/step-{step:05d}/00000.parquet", [episode])
"""


def test_the_train_stage_leaves_what_the_local_backend_leaves(workspace, model, tokenizer, games):
    save_model(workspace / "models/base", model, tokenizer)
    (workspace / "data/games").mkdir(parents=True)
    (workspace / "data/games/train.jsonl").write_text("".join(json.dumps(game) + "\n" for game in games))
    (workspace / "slime/train.py").write_text(LEAVES_A_TRAINING)
    (workspace / "params.yaml").write_text(yaml.safe_dump(config_of(workspace).model_dump(mode="json")))
    command = [sys.executable, "-m", "stages.train"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # SLIME's python3 is this one here
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    subprocess.run(command, cwd=workspace, env=env, check=True, capture_output=True)
    trained, _ = load_model(workspace / "models/trained")
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), model.parameters(), strict=True))
    assert [e.step for e in read_episodes(workspace / "data/rollouts")] == [0, 1, 2]
    curve = (workspace / "reports/training/plots/metrics/reward.tsv").read_text().split()
    assert curve[-1] == "0.2"
