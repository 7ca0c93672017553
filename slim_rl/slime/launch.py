"""Our parameters as SLIME's command, and the run of it.

    python -m slim_rl.slime.launch --dry-run    # the command, ready to be pasted
    python -m slim_rl.slime.launch --sbatch     # a Slurm script that brings Ray up on the nodes and runs it

The train stage runs it. Flags after github THUDM/slime v0.3.1 (624b824): `slime/utils/arguments.py`,
`scripts/run-qwen3-4B.sh`; Megatron-LM 1dcf0daf: `megatron/training/arguments.py`.
"""

import argparse
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from slim_rl.config import Config, load_config
from slim_rl.errors import UserError, told_in_a_sentence

HOOKS = "slim_rl.slime.hooks"
ROOT = Path(__file__).parents[2]


def arguments(config: Config, base: Path, games: Path, held_out: Path, folder: Path) -> list[str]:
    """SLIME's command line for `config`.

    Args:
        base: Hugging Face checkpoint folder to start from.
        games, held_out: games files to train and to evaluate on.
        folder: gets everything the run leaves; a run that finds a checkpoint there goes on from it.

    Raises:
        UserError: there are no model arguments for the checkpoint.
    """
    train, slime = config.train, config.slime
    episodes = train.games_per_step * train.samples_per_game
    flags: dict[str, object] = {
        # Who trains where
        "actor-num-nodes": slime.nodes,
        "actor-num-gpus-per-node": slime.gpus_per_node,
        "num-gpus-per-node": slime.gpus_per_node,
        "colocate": slime.colocate and not slime.external_engines,
        "rollout-num-gpus": slime.rollout_gpus,
        "rollout-num-gpus-per-engine": slime.gpus_per_engine,
        "rollout-external-engine-addrs": slime.external_engines,
        # Checkpoints
        "hf-checkpoint": base,
        "ref-load": base,
        "load": folder / "megatron",
        "save": folder / "megatron",
        "save-interval": slime.save_every,
        "save-hf": folder / "hf" / "{rollout_id}",
        # Rollouts
        "prompt-data": games,
        "input-key": "prompt",
        "label-key": "game_id",
        "metadata-key": "game_state",
        "rollout-seed": config.seed,
        "num-rollout": train.steps,
        "rollout-batch-size": train.games_per_step,
        "n-samples-per-prompt": train.samples_per_game,
        "rollout-temperature": train.temperature,
        "rollout-max-response-len": config.model.turn_tokens,
        "rollout-max-context-len": config.model.context_tokens,
        "partial-rollout": slime.partial_rollout,
        "custom-config-path": folder / "hooks.yaml",
        "custom-generate-function-path": f"{HOOKS}.generate",
        "dynamic-sampling-filter-path": f"{HOOKS}.keep_group",
        "buffer-filter-path": f"{HOOKS}.oldest_first",
        "custom-reward-post-process-path": f"{HOOKS}.normalise_rewards",
        "custom-rollout-log-function-path": f"{HOOKS}.log_rollout",
        "custom-eval-rollout-log-function-path": f"{HOOKS}.log_evaluation",
        "router-policy": "consistent_hashing",
        "sglang-mem-fraction-static": slime.sglang_memory_fraction,
        # GRPO
        "advantage-estimator": "grpo",
        "disable-grpo-std-normalization": not train.divide_by_std,
        "use-rollout-logprobs": True,
        "calculate-per-token-loss": train.average_over == "tokens",
        "eps-clip": train.clip_low,
        "eps-clip-high": train.clip_high,
        "use-kl-loss": train.kl_coefficient > 0,
        "kl-loss-coef": train.kl_coefficient,
        "kl-loss-type": train.kl_estimator,
        "entropy-coef": train.entropy_coefficient,
        "global-batch-size": episodes // train.minibatches,
        # Optimiser
        "seed": config.seed + 1,  # Megatron wants a positive one
        "optimizer": "adam",
        "lr": train.learning_rate,
        "lr-decay-style": "constant",
        "lr-warmup-iters": min(train.warmup_steps, train.steps - 1) * train.minibatches,
        "weight-decay": train.weight_decay,
        "adam-beta1": 0.9,
        "adam-beta2": 0.95,
        "clip-grad": train.max_grad_norm,
        # Megatron
        "tensor-model-parallel-size": slime.tensor_parallel,
        "sequence-parallel": slime.tensor_parallel > 1,
        "context-parallel-size": slime.context_parallel,
        "use-dynamic-batch-size": True,
        "max-tokens-per-gpu": slime.max_tokens_per_gpu,
        "balance-data": True,
        "recompute-granularity": "full",
        "recompute-method": "uniform",
        "recompute-num-layers": 1,
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
        "accumulate-allreduce-grads-in-fp32": True,
        "attention-softmax-in-fp32": True,
        "attention-backend": "flash",
    }
    if slime.evaluate_every:
        flags |= {
            "eval-interval": slime.evaluate_every,
            "eval-prompt-data": ("held_out", held_out),
            "n-samples-per-eval-prompt": 1,
            "eval-temperature": config.evaluate.temperature,
        }
    if slime.wandb_project:
        flags |= {"use-wandb": True, "wandb-project": slime.wandb_project, "wandb-group": folder.name}
    return [*model_arguments(config, base), *_spelled(flags), *slime.arguments]


def model_arguments(config: Config, base: Path) -> list[str]:
    """Megatron's description of the model: from SLIME's `scripts/models` if it has the checkpoint's name,
    else from the checkpoint's `config.json`."""
    if config.slime.directory:
        name = Path(config.model.base).name.lower()
        for script in sorted((Path(config.slime.directory).expanduser() / "scripts/models").glob("*.sh")):
            if script.stem.lower() == name:
                show = f'source {shlex.quote(str(script))} && printf "%s\\n" "${{MODEL_ARGS[@]}}"'
                run = subprocess.run(["bash", "-c", show], capture_output=True, text=True, check=True)
                return run.stdout.splitlines()
    try:
        described = json.loads((base / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{base / 'config.json'} cannot be read: {error}.") from error
    return described_arguments(described, base)


def described_arguments(model: dict, base: Path) -> list[str]:
    """The same from a dense Qwen2's or Qwen3's `config.json`. Raises UserError for other models."""
    kind = model.get("model_type")
    if kind not in ("qwen2", "qwen3"):
        raise UserError(
            f"{base} is a {kind!r} model, which config.json does not describe well enough for Megatron; give "
            "model.base the name of a checkpoint that SLIME's scripts/models has, and slime.directory."
        )
    heads = model["num_attention_heads"]
    theta = (model.get("rope_parameters") or model)["rope_theta"]
    flags = {
        "swiglu": True,
        "num-layers": model["num_hidden_layers"],
        "hidden-size": model["hidden_size"],
        "ffn-hidden-size": model["intermediate_size"],
        "num-attention-heads": heads,
        "group-query-attention": True,
        "num-query-groups": model.get("num_key_value_heads") or heads,
        "kv-channels": model.get("head_dim") or model["hidden_size"] // heads,
        "use-rotary-position-embeddings": True,
        "rotary-base": int(theta),
        "disable-bias-linear": True,
        "add-qkv-bias": kind == "qwen2",
        "qk-layernorm": kind == "qwen3",
        "normalization": "RMSNorm",
        "norm-epsilon": model["rms_norm_eps"],
        "vocab-size": model["vocab_size"],
        "untie-embeddings-and-output-weights": not model.get("tie_word_embeddings", False),
    }
    return list(_spelled(flags))


def _spelled(flags: dict[str, object]) -> Iterator[str]:
    for name, value in flags.items():
        match value:
            case None | False | ():
                continue
            case True:
                yield f"--{name}"
            case tuple():
                yield from (f"--{name}", *map(str, value))
            case _:
                yield from (f"--{name}", str(value))


def environment(config: Config) -> dict[str, str]:
    """What SLIME's processes need to find the code. Keys are not among it: they belong to the environment
    in which Ray was started."""
    slime = _directory(config)
    paths = [slime, slime.parent / "Megatron-LM", ROOT]
    return {
        "PYTHONPATH": ":".join(map(str, paths)),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }


def command(config: Config, slime_arguments: Sequence[str], job: str) -> list[str]:
    """The whole command: a job for the cluster at `slime.ray_address`, or SLIME on a cluster of its own."""
    train = [config.slime.python, str(_directory(config) / "train.py"), *slime_arguments]
    address = _ray_address(config)
    if address is None:
        return ["env", "RAY_ADDRESS=local", *(f"{k}={v}" for k, v in environment(config).items()), *train]
    return [
        *(*_ray(config), "job", "submit", "--address", address, "--submission-id", job),
        *("--runtime-env-json", json.dumps({"env_vars": environment(config)}), "--", *train),
    ]


def run(config: Config, base: Path, games: Path, held_out: Path, folder: Path) -> Path:
    """Train with SLIME, from the last checkpoint in `folder` if there is one.

    Returns:
        The Hugging Face checkpoint folder that the last step left.

    Raises:
        UserError: SLIME ended otherwise than well.
    """
    paths = [path.resolve() for path in (base, games, held_out, folder)]
    write_hooks_file(config, paths[-1])
    _forget_half_a_save(paths[-1])
    job = f"slim-rl-{folder.name}-{int(time.time())}"
    process = subprocess.Popen(command(config, arguments(config, *paths), job), start_new_session=True)
    with _ended_with_us(config, process, job):
        code = process.wait()
        last = config.train.steps - 1
        if code or last not in _saved(folder):
            raise UserError(
                f"SLIME ended with exit code {code} before step {config.train.steps} was saved; its last lines above "
                f"say why. What it finished is in {folder}; the same command goes on from its last checkpoint."
            )
    return folder / "hf" / str(last)


def _saved(folder: Path) -> list[int]:
    """The steps whose checkpoint is whole. SLIME writes Megatron's, then the Hugging Face one with its index
    last, then where it was in the games."""
    found = (int(path.parent.name) for path in folder.glob("hf/*/model.safetensors.index.json"))
    return sorted(
        n for n in found if (folder / f"megatron/rollout/global_dataset_state_dict_{n}.pt").exists()
    )


def _forget_half_a_save(folder: Path) -> None:
    """Let SLIME go on from the last whole checkpoint, if it was killed while it saved a later one."""
    tracker, saved = folder / "megatron/latest_checkpointed_iteration.txt", _saved(folder)
    if tracker.exists() and tracker.read_text().strip() not in map(str, saved):
        if saved:
            tracker.write_text(str(saved[-1]))
        else:
            tracker.unlink()


def write_hooks_file(config: Config, folder: Path) -> None:
    """What `hooks.py` reads: our parameters, and where episodes go."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    paths = {"slim_rl_params": str(folder / "params.yaml"), "slim_rl_folder": str(folder)}
    (folder / "hooks.yaml").write_text(yaml.safe_dump(paths))


class _ended_with_us:
    """Ends what was started here, and nothing else, if this process is interrupted or told to end."""

    def __init__(self, config: Config, process: subprocess.Popen, job: str):
        self._config, self._process, self._job = config, process, job

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("Told to end."))

    def __exit__(self, kind: object, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        if kind is None:
            return
        if address := _ray_address(self._config):
            stop = [*_ray(self._config), "job", "stop", "--address", address, self._job]
            subprocess.run(stop, check=False)
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)


SBATCH = """#!/bin/bash
#SBATCH --job-name=slim-rl
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
set -euo pipefail
export {environment}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ray="{ray}"
ray_start="$ray start --num-gpus={gpus} --disable-usage-stats --block"
srun --overlap --nodes=1 --ntasks=1 -w "$head" \\
    $ray_start --head --node-ip-address="$head" --port=6379 --dashboard-host=0.0.0.0 --dashboard-port=8265 &
export RAY_API_SERVER_ADDRESS="http://$head:8265"
until $ray job list >/dev/null 2>&1; do sleep 2; done
if [ "$SLURM_NNODES" -gt 1 ]; then
    srun --overlap --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude "$head" \\
        $ray_start --address="$head:6379" &
fi
until [ "$($ray list nodes --filter state=ALIVE --format json | grep -c '"node_id"')" -ge "$SLURM_NNODES" ]; do sleep 2; done
make -C {root} repro
"""


def sbatch(config: Config, root: Path = ROOT) -> str:
    """A Slurm script: Ray on all nodes of the job, the pipeline on Ray; all of it ends with the job."""
    slime = config.slime
    return SBATCH.format(
        nodes=slime.nodes + math.ceil((slime.rollout_gpus or 0) / slime.gpus_per_node),
        gpus=slime.gpus_per_node,
        environment=" ".join(f"{k}={shlex.quote(v)}" for k, v in environment(config).items()),
        ray=shlex.join(_ray(config)),
        root=shlex.quote(str(root)),
    )


def _ray(config: Config) -> tuple[str, ...]:
    """Ray's command line, by the Python that has it."""
    return config.slime.python, "-m", "ray.scripts.scripts"


def _ray_address(config: Config) -> str | None:
    """Ray's own environment variable stands in for the parameter."""
    return config.slime.ray_address or os.environ.get("RAY_API_SERVER_ADDRESS")


def _directory(config: Config) -> Path:
    directory = Path(config.slime.directory or "").expanduser()
    if config.slime.directory is None or not (directory / "train.py").exists():
        raise UserError(
            f"slime.directory is {config.slime.directory}, but must be the folder of SLIME's source; get it with "
            "git clone --branch v0.3.1 https://github.com/THUDM/slime, or use SLIME's container image."
        )
    return directory.resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description="SLIME's command for params.yaml.")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command of the train stage, with a folder of its own",
    )
    what.add_argument("--sbatch", action="store_true", help="print a Slurm script: ... --sbatch | sbatch")
    given = parser.parse_args()
    config = load_config(given.params)
    if given.sbatch:
        print(sbatch(config))
        return
    folder = Path(".work/slime/dry-run").resolve()
    write_hooks_file(config, folder)
    ending = config.games.format
    names = ("models/base", f"data/games/train.{ending}", f"data/games/evaluate.{ending}")
    data = [Path(name).resolve() for name in names]
    words = command(config, arguments(config, *data, folder), "slim-rl-dry-run")
    print(shlex.join(words).replace(" --", " \\\n    --"))


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
