"""SLIME's own rollout side on this machine: its source, the real router, two of our servers, a tiny Qwen.

`make test-slime SLIME_DIR=...` runs these tests; without SLIME_DIR they are not collected.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
import types
import urllib.request
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

from slim_rl.config import Config
from slim_rl.slime import launch

SLIME_DIR = os.environ.get("SLIME_DIR")
ROOT = Path(__file__).parents[2]

collect_ignore_glob = []
if SLIME_DIR is None:
    collect_ignore_glob.append("test_*.py")
else:
    sys.path.insert(0, SLIME_DIR)
    # What of SGLang SLIME imports but does not use on its rollout side; it needs a GPU.
    for name in (
        "sglang",
        "sglang.srt",
        "sglang.srt.constants",
        "sglang.srt.server_args",
        "sglang.srt.utils",
    ):
        sys.modules[name] = types.ModuleType(name)
    for memory in ("CUDA_GRAPH", "KV_CACHE", "WEIGHTS"):
        setattr(sys.modules["sglang.srt.constants"], f"GPU_MEMORY_TYPE_{memory}", memory.lower())
    sys.modules["sglang.srt.server_args"].ServerArgs = type("ServerArgs", (), {})
    sys.modules["sglang.srt.utils"].kill_process_tree = None

PARAMETERS = {
    "threads": 1,
    "board": {"size": 3},
    "games": {"train_count": 160, "eval_count": 64, "max_turns": 12},
    "warmstart": {"demonstrations": 1600},
    "train": {"backend": "slime", "steps": 2, "games_per_step": 64, "samples_per_game": 4},
    "slime": {
        "gpus_per_node": 1,
        "colocate": True,
        "retry_seconds": 60,
        "request_timeout_seconds": 30,
        "evaluate_every": 1,
    },
}


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    """A folder with what the stages `games` and `base_model` leave."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMETERS))
    for stage in ("games", "base_model"):
        run = [sys.executable, "-m", f"stages.{stage}"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(run, cwd=folder, env=env, check=True, capture_output=True)
    return folder


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(url, process, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert process.poll() is None, f"{url} has ended"
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"{url} does not answer")


@contextmanager
def running(*command, ready):
    process = subprocess.Popen([sys.executable, "-m", *map(str, command)], cwd=ROOT)
    try:
        wait_for(ready, process)
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def server(workspace):
    port = free_port()
    model = workspace / "models/base"
    options = ("--model", model, "--port", port, "--threads", 1)
    with running("slim_rl.engines.server", *options, ready=f"http://127.0.0.1:{port}/health") as process:
        yield f"127.0.0.1:{port}", process


@contextmanager
def router(*addresses):
    port = free_port()
    workers = ("--worker-urls", *(f"http://{address}" for address in addresses))
    options = (
        "--host",
        "127.0.0.1",
        "--port",
        port,
        "--prometheus-port",
        free_port(),
        "--log-level",
        "error",
    )
    # `manual` is what the router on PyPI calls the policy that heeds X-SMG-Routing-Key.
    policy = ("--policy", "manual", "--disable-circuit-breaker")
    ready = f"http://127.0.0.1:{port}/workers"
    with running("sglang_router.launch_router", *workers, *options, *policy, ready=ready):
        yield port


@pytest.fixture(scope="session")
def servers(workspace):
    with server(workspace) as (one, _), server(workspace) as (two, _), router(one, two) as port:
        yield (one, two), port


@pytest.fixture(scope="session")
def make_args(workspace):
    return partial(slime_args, workspace)


def slime_args(workspace, folder, addresses, router_port, **changes):
    """SLIME's arguments, from the flags that `launch` prints, by SLIME's own parser and its own checks."""
    from slime.utils.arguments import get_slime_extra_args_provider, slime_validate_args

    merged = {s: {**PARAMETERS.get(s, {}), **changes.get(s, {})} for s in {**PARAMETERS, **changes}
              if isinstance(PARAMETERS.get(s, {}), dict)}  # fmt: skip
    merged["slime"]["external_engines"] = tuple(addresses)
    config = Config.model_validate(merged)
    launch.write_hooks_file(config, folder)
    data = workspace / "data/games"
    flags = launch.arguments(
        config, workspace / "models/base", data / "train.jsonl", data / "evaluate.jsonl", folder
    )
    parser = get_slime_extra_args_provider()(argparse.ArgumentParser(allow_abbrev=False))
    args, _ = parser.parse_known_args(flags)
    # From SLIME's other parsers, SGLang's and the one for debugging.
    args.debug_rollout_only = args.debug_train_only = False
    args.load_debug_rollout_data = None
    args.train_backend = "megatron"
    args.sglang_server_concurrency = 128
    args.sglang_dp_size = 1
    args.context_parallel_size = 1
    slime_validate_args(args)
    args.sglang_router_ip, args.sglang_router_port = "127.0.0.1", router_port
    args.router_policy = "consistent_hashing"
    return config, args


@pytest.fixture(autouse=True)
def fresh_slime():
    """SLIME and the hooks keep things for a whole run; each test is a run of its own."""
    from slime.rollout.sglang_rollout import EVAL_PROMPT_DATASET, GenerateState
    from slime.utils import http_utils

    from slim_rl.slime import hooks

    type(GenerateState)._instances.clear()
    EVAL_PROMPT_DATASET.clear()
    http_utils._http_client = None
    for cached in (hooks._config, hooks._engine_at, hooks._chat_format):
        cached.cache_clear()
    hooks._failures.count = hooks._drops.count = 0
