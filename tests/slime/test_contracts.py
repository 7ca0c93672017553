"""SLIME's own contract tests (`tests/plugin_contracts`) with our hooks."""

import os
import subprocess
import sys

from slim_rl.config import Config
from slim_rl.slime.arguments import arguments
from slim_rl.slime.parameters import RunParameters
from tests.slime.support import PARAMETERS, ROOT, SLIME_DIR

OPTIONS = (
    "custom-generate-function-path",
    "dynamic-sampling-filter-path",
    "custom-rollout-log-function-path",
    "custom-eval-rollout-log-function-path",
    "custom-reward-post-process-path",
)


def test_our_hooks_keep_slimes_contracts(base, tmp_path):
    flags = arguments(RunParameters.of(Config.model_validate(PARAMETERS)), base, tmp_path)
    hooks = {
        f"SLIME_CONTRACT_{option.upper().replace('-', '_')}": flags[flags.index(f"--{option}") + 1]
        for option in OPTIONS
    }
    env = {**os.environ, **hooks, "PYTHONPATH": f"{SLIME_DIR}:{ROOT}"}
    command = [sys.executable, "-m", "pytest", "-rA", "tests/plugin_contracts"]
    run = subprocess.run(command, cwd=SLIME_DIR, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:]
