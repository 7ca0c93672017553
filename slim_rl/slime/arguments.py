"""Our parameters as SLIME's command line.

Flags after github THUDM/slime v0.3.1 (a6272da0) and 624b824: `slime/utils/arguments.py`, `scripts/run-qwen3-4B.sh`;
Megatron-LM 1dcf0daf: `megatron/training/arguments.py`.
"""

from pathlib import Path

from slim_rl.core.errors import UserError
from slim_rl.slime import folder as files
from slim_rl.slime import progress
from slim_rl.slime.model_arguments import model_arguments, words
from slim_rl.slime.parameters import RunParameters
from slim_rl.slime.session import session
from slim_rl.slime.source import keeps_engines

_PARTIAL = "--partial-rollout"
_REFUSED = {
    _PARTIAL: "SLIME keeps no episode in which the policy has several seats",
    "straw": "this transport takes plain JSON, and our samples carry whole episodes; leave --rollout-data-transport out",
    "--use-score-centering": "our episodes have the log-probs of sampled tokens only; --use-tis corrects for old samples",
}


def arguments(parameters: RunParameters, base: Path, folder: Path) -> list[str]:
    """SLIME's command line.

    Args:
        base: Hugging Face checkpoint folder to start from.
        folder: gets everything the run leaves; a run that finds a checkpoint there continues from it.

    Raises:
        UserError: there are no model arguments for the checkpoint, or `slime.arguments` ask for too much.
    """
    train, slime, model = parameters.train, parameters.slime, parameters.model
    for flag in _REFUSED.keys() & set(slime.arguments):
        if flag != _PARTIAL or parameters.several_policies:
            raise UserError(f"slime.arguments have {flag}, but {_REFUSED[flag]}.")
    flags: dict[str, object] = {
        # GPUs
        "actor-num-nodes": slime.nodes,
        "actor-num-gpus-per-node": slime.gpus_per_node,
        "num-gpus-per-node": slime.gpus_per_node,
        "colocate": slime.rollout_gpus is None,
        "rollout-num-gpus": slime.rollout_gpus,
        "rollout-num-gpus-per-engine": slime.gpus_per_engine,
        # A dead engine leaves the router within seconds and starts again before the next rollout. The defaults of
        # versions differ: in 0.4 it takes minutes.
        "use-fault-tolerance": "--rollout-external-engine-addrs" not in slime.arguments,
        "rollout-health-check-interval": 10,
        "rollout-health-check-timeout": 30,
        "rollout-health-check-first-wait": 0,
        # Checkpoints
        "hf-checkpoint": base,
        "ref-load": base,
        "load": folder / "megatron",
        "save": folder / "megatron",
        "save-interval": slime.save_every,
        "save-hf": folder / "hf" / "{rollout_id}",
        # Rollouts
        "prompt-data": folder / files.TRAIN,
        "input-key": "prompt",
        "label-key": "game_id",
        "rollout-seed": parameters.seed,
        "num-rollout": train.steps,
        "rollout-batch-size": train.games_per_step,
        "n-samples-per-prompt": train.samples_per_game,
        "rollout-temperature": train.temperature,
        "rollout-max-response-len": model.turn_tokens,
        "rollout-max-context-len": model.context_tokens,
        "custom-config-path": folder / files.HOOKS,
        "custom-generate-function-path": "slim_rl.slime.generate.generate",
        "dynamic-sampling-filter-path": "slim_rl.slime.groups.keep_group",
        "custom-reward-post-process-path": "slim_rl.slime.groups.normalise_rewards",
        "custom-advantage-function-path": "slim_rl.slime.groups.token_advantages",
        "custom-rollout-log-function-path": "slim_rl.slime.logs.log_rollout",
        "custom-eval-rollout-log-function-path": "slim_rl.slime.logs.log_evaluation",
        "router-policy": "consistent_hashing",
        "sglang-mem-fraction-static": slime.sglang_memory_fraction,
        "rollout-session-id": session(folder) if keeps_engines(slime) else None,
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
        # Megatron otherwise insists on the checkpoint's number of steps, so that no run could become longer.
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
        flags |= {"group-rm": True, "custom-rm-path": "slim_rl.slime.groups.judge_group"}
    if slime.mode == "fully_async":
        flags |= {"rollout-function-path": "slim_rl.slime.fully_async.generate_rollout"}
    if slime.evaluate_every:
        flags |= {
            "eval-interval": slime.evaluate_every,
            "eval-prompt-data": (progress.HELD_OUT, folder / files.HELD_OUT),
            "n-samples-per-eval-prompt": 1,
            "eval-temperature": parameters.evaluate_temperature,
        }
    if train.wandb_project:
        flags |= {"use-wandb": True, "wandb-project": train.wandb_project, "wandb-group": folder.name}
    removed = {name for name in flags if f"--no-{name}" in slime.arguments}
    users = [word for word in slime.arguments if word not in {f"--no-{name}" for name in removed}]
    # Not both: the parsers also refuse a value that a later one replaces.
    ours = {name: value for name, value in flags.items() if name not in removed and f"--{name}" not in users}
    return [*model_arguments(base, parameters.model.base, slime.directory), *words(ours), *users]
