"""Our parameters as SLIME's command line.

Flags after github THUDM/slime v0.3.1 (a6272da0) and 624b824: `slime/utils/arguments.py`, `scripts/run-qwen3-4B.sh`;
Megatron-LM 1dcf0daf: `megatron/training/arguments.py`.
"""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from slim_rl.core.errors import UserError
from slim_rl.slime import progress
from slim_rl.slime.parameters import RunParameters

TRAIN, HELD_OUT, HOOKS = "train.jsonl", "held_out.jsonl", "hooks.yaml"
"""Files that `launch` leaves in the folder of a run."""


def arguments(parameters: RunParameters, base: Path, folder: Path) -> list[str]:
    """SLIME's command line.

    Args:
        base: Hugging Face checkpoint folder to start from.
        folder: gets everything the run leaves; a run that finds a checkpoint there goes on from it.

    Raises:
        UserError: there are no model arguments for the checkpoint, or `slime.arguments` ask for too much.
    """
    train, slime, model = parameters.train, parameters.slime, parameters.model
    several = any(game.seating.count("policy") > 1 for game in parameters.games.values())
    if several and "--partial-rollout" in slime.arguments:
        raise UserError(
            "slime.arguments have --partial-rollout, but SLIME keeps no episode in which the policy has several seats."
        )
    flags: dict[str, object] = {
        # Who trains where
        "actor-num-nodes": slime.nodes,
        "actor-num-gpus-per-node": slime.gpus_per_node,
        "num-gpus-per-node": slime.gpus_per_node,
        "colocate": slime.colocate,
        "rollout-num-gpus": slime.rollout_gpus,
        "rollout-num-gpus-per-engine": slime.gpus_per_engine,
        # A dead engine is taken from the router, and started again before the next rollout.
        "use-fault-tolerance": "--rollout-external-engine-addrs" not in slime.arguments,
        "rollout-health-check-interval": 10,
        # Checkpoints
        "hf-checkpoint": base,
        "ref-load": base,
        "load": folder / "megatron",
        "save": folder / "megatron",
        "save-interval": slime.save_every,
        "save-hf": folder / "hf" / "{rollout_id}",
        # Rollouts
        "prompt-data": folder / TRAIN,
        "input-key": "prompt",
        "label-key": "game_id",
        "rollout-seed": parameters.seed,
        "num-rollout": train.steps,
        "rollout-batch-size": train.games_per_step,
        "n-samples-per-prompt": train.samples_per_game,
        "rollout-temperature": train.temperature,
        "rollout-max-response-len": model.turn_tokens,
        "rollout-max-context-len": model.context_tokens,
        "custom-config-path": folder / HOOKS,
        "custom-generate-function-path": "slim_rl.slime.generate.generate",
        "dynamic-sampling-filter-path": "slim_rl.slime.filters.keep_group",
        "custom-reward-post-process-path": "slim_rl.slime.advantages.normalise_rewards",
        "custom-advantage-function-path": "slim_rl.slime.advantages.token_advantages",
        "custom-rollout-log-function-path": "slim_rl.slime.logs.log_rollout",
        "custom-eval-rollout-log-function-path": "slim_rl.slime.logs.log_evaluation",
        "router-policy": "consistent_hashing",
        "sglang-mem-fraction-static": slime.sglang_memory_fraction,
        # The loss
        "advantage-estimator": "grpo",
        # Corrections for sampling from other weights compare these with log-probs computed anew.
        "use-rollout-logprobs": "--use-tis" not in slime.arguments,
        "calculate-per-token-loss": train.average_over == "tokens",
        "eps-clip": train.clip_low,
        "eps-clip-high": train.clip_high,
        "use-kl-loss": train.kl_coefficient > 0,
        "kl-loss-coef": train.kl_coefficient,
        "kl-loss-type": train.kl_estimator,
        "entropy-coef": 0.0,
        "global-batch-size": train.games_per_step * train.samples_per_game // train.minibatches,
        # Optimiser
        "seed": parameters.seed + 1,  # Megatron wants a positive one
        "optimizer": "adam",
        "lr": train.learning_rate,
        "lr-decay-style": "constant",
        # A run that is made longer goes on: Megatron otherwise insists on the checkpoint's number of steps.
        "override-opt_param-scheduler": True,
        "lr-warmup-iters": min(train.warmup_steps, train.steps - 1) * train.minibatches,
        "weight-decay": train.weight_decay,
        "adam-beta1": 0.9,
        "adam-beta2": 0.95,
        "clip-grad": train.max_grad_norm,
        # Megatron
        "tensor-model-parallel-size": slime.tensor_parallel,
        "sequence-parallel": slime.tensor_parallel > 1,
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
    if any(game.reward_function and game.reward_function.scope == "group" for game in parameters.games.values()):
        flags |= {"group-rm": True, "custom-rm-path": "slim_rl.slime.rewards.judge_group"}
    if slime.mode == "fully_async":
        flags |= {"rollout-function-path": "slim_rl.slime.fully_async.generate_rollout"}
    if slime.evaluate_every:
        flags |= {
            "eval-interval": slime.evaluate_every,
            "eval-prompt-data": (progress.HELD_OUT, folder / HELD_OUT),
            "n-samples-per-eval-prompt": 1,
            "eval-temperature": parameters.evaluate_temperature,
        }
    if slime.wandb_project:
        flags |= {"use-wandb": True, "wandb-project": slime.wandb_project, "wandb-group": folder.name}
    taken_back = {name for name in flags if f"--no-{name}" in slime.arguments}
    given = [word for word in slime.arguments if word not in {f"--no-{name}" for name in taken_back}]
    # Not both: the parsers also refuse a value that a later one replaces.
    ours = {name: value for name, value in flags.items() if name not in taken_back and f"--{name}" not in given}
    return [*model_arguments(parameters, base), *_spelled(ours), *given]


def model_arguments(parameters: RunParameters, base: Path) -> list[str]:
    """Megatron's description of the model: from SLIME's `scripts/models` if it has the checkpoint's name, otherwise
    from the checkpoint's `config.json`."""
    if parameters.slime.directory:
        name = Path(parameters.model.base).name.lower()
        for script in sorted((Path(parameters.slime.directory).expanduser() / "scripts/models").glob("*.sh")):
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
    """The same from the `config.json` of a dense Qwen2, Qwen3 or Llama. Raises UserError for other models."""
    family = model.get("model_type")
    rope = {**model, **(model.get("rope_parameters") or model.get("rope_scaling") or {})}
    scaling = rope.get("rope_type") or "default"
    known = family in ("qwen2", "qwen3", "llama") and scaling in ("default", "llama3")
    if not known or model.get("attention_bias") or model.get("mlp_bias"):
        raise UserError(
            f"{base} is a {family!r} model, whose config.json does not tell Megatron enough. Set model.base to the "
            "name of a checkpoint that SLIME's scripts/models has, and slime.directory."
        )
    heads = model["num_attention_heads"]
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
        "rotary-base": int(rope["rope_theta"]),
        "use-rope-scaling": scaling == "llama3",
        "rope-scaling-factor": rope["factor"] if scaling == "llama3" else None,
        "disable-bias-linear": True,
        "add-qkv-bias": family == "qwen2",
        "qk-layernorm": family == "qwen3",
        "normalization": "RMSNorm",
        "norm-epsilon": model["rms_norm_eps"],
        "vocab-size": model["vocab_size"],
        "untie-embeddings-and-output-weights": not model.get("tie_word_embeddings", False),
    }
    return list(_spelled(flags))


def _spelled(flags: dict[str, object]) -> Iterator[str]:
    for name, value in flags.items():
        match value:
            case None | False:
                continue
            case True:
                yield f"--{name}"
            case tuple():
                yield from (f"--{name}", *map(str, value))
            case _:
                yield from (f"--{name}", str(value))
