"""What `launch` prints is what SLIME, Megatron and SGLang's router take."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, SLIME_DIR
from sglang_router.launch_router import RouterArgs
from slime.utils.arguments import get_slime_extra_args_provider

from slim_rl.config import Config, load_config
from slim_rl.slime import launch

PROFILES = sorted((ROOT / "conf").glob("qwen*.yaml"))
DENSE = ["qwen2.5-0.5B", "qwen2.5-7B", "qwen3-0.6B", "qwen3-4B", "qwen3-8B"]


@pytest.fixture
def base(tmp_path):
    """A checkpoint folder as small as `launch` needs it, for a model that SLIME has no script of."""
    model = dict(
        model_type="qwen3", num_hidden_layers=3, hidden_size=128, intermediate_size=384, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, rope_parameters={"rope_theta": 1e4}, rms_norm_eps=1e-6, vocab_size=429,
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(model))
    return tmp_path


def test_there_are_three_profiles():
    assert len(PROFILES) == 3


@pytest.mark.parametrize("profile", [ROOT / "params.yaml", *PROFILES], ids=lambda path: path.stem)
def test_every_flag_is_known(profile, base, tmp_path):
    config = load_config(profile)
    slime = config.slime.model_copy(
        update={"directory": SLIME_DIR, "evaluate_every": 5, "wandb_project": "p", "partial_rollout": True}
    )
    config = config.model_copy(update={"slime": slime})
    games = tmp_path / "games.jsonl"
    flags = launch.arguments(config, base, games, games, tmp_path)
    # SLIME reads Megatron's and SGLang's arguments by other parsers; what is left to them must be an
    # argument that the router has, or that SLIME's own scripts or code use.
    parser = get_slime_extra_args_provider()(argparse.ArgumentParser(allow_abbrev=False))
    RouterArgs.add_cli_args(parser, use_router_prefix=True, exclude_host_port=True)
    flags[flags.index("--router-policy") + 1] = "manual"  # the name of the policy in the router on PyPI
    _, others = parser.parse_known_args(flags)
    sources = [p for p in Path(SLIME_DIR).rglob("*") if p.suffix in (".py", ".sh")]
    text = "\n".join(path.read_text(errors="ignore") for path in sources)
    unknown = [
        flag
        for flag in others
        if flag.startswith("--")
        and f"{flag} " not in text
        and f"{flag}\n" not in text
        and f"args.{flag[2:].replace('-', '_')}" not in text
    ]
    assert unknown == []


def test_every_other_flag_is_megatrons_or_sglangs(base, tmp_path):
    """Against their sources, where they are (MEGATRON_DIR, SGLANG_DIR); Megatron ignores what it does not know."""
    sources = {name: os.environ.get(f"{name}_DIR") for name in ("MEGATRON", "SGLANG")}
    if not all(sources.values()):
        pytest.skip("MEGATRON_DIR and SGLANG_DIR do not name the sources")
    megatron, sglang = (
        "\n".join(path.read_text(errors="ignore") for path in Path(folder).rglob("*.py"))
        for folder in sources.values()
    )
    parser = get_slime_extra_args_provider()(argparse.ArgumentParser(allow_abbrev=False))
    RouterArgs.add_cli_args(parser, use_router_prefix=True, exclude_host_port=True)
    for profile in [ROOT / "params.yaml", *PROFILES]:
        config = load_config(profile)
        config = config.model_copy(
            update={"slime": config.slime.model_copy(update={"directory": SLIME_DIR, "tensor_parallel": 2})}
        )
        flags = launch.arguments(config, base, tmp_path, tmp_path, tmp_path)
        flags[flags.index("--router-policy") + 1] = "manual"
        for flag in (f for f in parser.parse_known_args(flags)[1] if f.startswith("--")):
            if flag.startswith("--sglang-"):
                field = flag.removeprefix("--sglang-").replace("-", "_")
                assert re.search(rf"^\s+{field}\s*:", sglang, re.MULTILINE), flag
            else:
                field = flag[2:].replace("-", "_")
                there = re.search(rf"[\"']{flag}[\"']|^\s+{field}\s*:", megatron, re.MULTILINE)
                assert there, flag


@pytest.mark.parametrize("name", DENSE)
def test_model_arguments_from_a_config_are_those_of_slimes_script(name):
    script = Path(SLIME_DIR, "scripts/models", f"{name}.sh")
    show = f'source {script} && printf "%s\\n" "${{MODEL_ARGS[@]}}"'
    words = subprocess.run(["bash", "-c", show], capture_output=True, text=True, check=True).stdout.split()
    theirs = pairs(words)
    model = {
        "model_type": "qwen3" if "--qk-layernorm" in theirs else "qwen2",
        "num_hidden_layers": int(theirs["--num-layers"]),
        "hidden_size": int(theirs["--hidden-size"]),
        "intermediate_size": int(theirs["--ffn-hidden-size"]),
        "num_attention_heads": int(theirs["--num-attention-heads"]),
        "num_key_value_heads": int(theirs["--num-query-groups"]),
        "rope_theta": float(theirs["--rotary-base"]),
        "rms_norm_eps": float(theirs["--norm-epsilon"]),
        "vocab_size": int(theirs["--vocab-size"]),
        "tie_word_embeddings": "--untie-embeddings-and-output-weights" not in theirs,
        **({"head_dim": int(theirs["--kv-channels"])} if "--kv-channels" in theirs else {}),
    }
    ours = pairs(launch.described_arguments(model, Path(name)))
    derived = {"--kv-channels", "--use-rotary-position-embeddings"}  # scripts may leave them to defaults
    for flag in ours.keys() | theirs.keys() - {"--norm-epsilon"}:
        if flag in theirs and flag in ours and ours[flag] is not None and theirs[flag] is not None:
            same = theirs[flag].strip('"')
            assert ours[flag] == same or float(ours[flag]) == float(same), flag
        elif flag not in derived:
            assert flag in ours, f"{flag} of SLIME's script is missing"


def pairs(words):
    found, last = {}, None
    for word in words:
        if word.startswith("--"):
            found[last := word] = None
        else:
            found[last] = word
    return found


SRUN = """#!/bin/bash
# Slurm's srun on one machine: the options go, the command stays.
while [[ "$1" == -* ]]; do [[ "$1" == -w || "$1" == --exclude ]] && shift; shift; done
exec "$@"
"""
TRAINS = """
import pathlib, sys
import ray
ray.init()
saved = pathlib.Path(sys.argv[sys.argv.index("--save-hf") + 1].format(rollout_id=1))
saved.mkdir(parents=True)
(saved / "model.safetensors.index.json").write_text(str(ray.cluster_resources().get("GPU")))
state = saved.parents[1] / "megatron/rollout/global_dataset_state_dict_1.pt"
state.parent.mkdir(parents=True)
state.touch()
"""


def test_the_slurm_script_brings_ray_up_and_runs_the_job(base, tmp_path):
    """With Ray itself; srun and scontrol stand in for Slurm, a script for SLIME."""
    (tmp_path / "slime").mkdir()
    (tmp_path / "slime/train.py").write_text(TRAINS)
    for name, text in {"srun": SRUN, "scontrol": "#!/bin/bash\necho 127.0.0.1\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slime = {"directory": str(tmp_path / "slime"), "python": sys.executable, "gpus_per_node": 2}
    config = Config.model_validate({"train": {"backend": "slime", "steps": 2}, "slime": slime})
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    (tmp_path / "run.py").write_text(
        "from pathlib import Path; from slim_rl.config import load_config; from slim_rl.slime import launch\n"
        "launch.run(load_config(), *map(Path, ('.', 't', 'e', 'run')))"
    )
    (tmp_path / "Makefile").write_text(f"repro:\n\t{sys.executable} run.py\n")
    script = launch.sbatch(config, tmp_path)
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_NODELIST": "one",
        "SLURM_NNODES": "1",
    }
    job = subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env=env, start_new_session=True)
    try:
        assert job.wait(100) == 0
    finally:
        os.killpg(job.pid, signal.SIGTERM)  # as Slurm does at the end of a job
    assert (tmp_path / "run/hf/1/model.safetensors.index.json").read_text() == "2.0"
