"""SLIME's own contract tests (`tests/plugin_contracts`) against each of our hooks."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT, SLIME_DIR

HOOKS = {
    "test_plugin_generate_contracts.py": {"custom-generate-function-path": ["generate"]},
    "test_plugin_path_loading_contracts.py": {
        "dynamic-sampling-filter-path": [
            "keep_group",
            "check_reward_nonzero_std",
            "check_min_reward",
            "check_response_diversity",
            "check_reasonable_length",
            "check_any_success",
            "check_quality_and_diversity",
            "check_no_failed_episode",
        ],
        "buffer-filter-path": ["oldest_first"],
        "custom-rm-path": ["reward"],
    },
    "test_plugin_runtime_hook_contracts.py": {
        "custom-rollout-log-function-path": ["log_rollout"],
        "custom-eval-rollout-log-function-path": ["log_evaluation"],
        "custom-reward-post-process-path": ["normalise_rewards"],
    },
}


@pytest.mark.parametrize(
    ("file", "option", "hook"), [(f, o, h) for f, options in HOOKS.items() for o, hooks in options.items() for h in hooks]
)  # fmt: skip
def test_contract(file, option, hook):
    command = [
        sys.executable,
        f"tests/plugin_contracts/{file}",
        f"--{option}",
        f"slim_rl.slime.hooks.{hook}",
        "-q",
    ]
    env = {**os.environ, "PYTHONPATH": f"{SLIME_DIR}:{ROOT}"}
    run = subprocess.run(command, cwd=SLIME_DIR, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]
