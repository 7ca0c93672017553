"""SLIME's own rollout side on this machine: its source, the real router, two of our servers, a tiny Qwen."""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from aiohttp import web

from slim_rl.config import Config
from slim_rl.engines.engine import EngineFailed, Generation
from slim_rl.games import load_games
from slim_rl.runtime.process import end, wait_until
from slim_rl.slime import folder as files
from slim_rl.slime.arguments import arguments
from slim_rl.slime.parameters import RunParameters
from slim_rl.slime.source import NEEDED
from tests.babbler import Babbler
from tests.fake_time import run_in_fake_time
from tests.settings import merged
from tests.sglang_server import Server, meta_info

SLIME_DIR = os.environ.get("SLIME_DIR")
ROOT = Path(__file__).parents[2]
MATCHING = {
    "seating": ["policy", "scripted"],
    "size": 3,
    "train_count": 160,
    "eval_count": 32,
    "max_turns": 12,
}
PARAMETERS = {
    "cores": 1,
    "games": {"matching": MATCHING},
    "model": {"context_tokens": 512, "turn_tokens": 32},
    "warmstart": {"demonstrations": 800, "batch": 8},
    "train": {
        "backend": "slime",
        "steps": 2,
        "games_per_step": 32,
        "samples_per_game": 4,
        "average_over": "tokens",
        "filters": ["no_failed_episode", "reward_varies"],
    },
    "slime": {"gpus_per_node": 1, "retry_seconds": 60, "request_timeout_seconds": 30, "evaluate_every": 1},
}
CONTEXT_TOKENS, TURN_TOKENS = 1200, 48  # of the samples that are played without SLIME's processes
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
"""What a checkpoint's config.json says of its shape."""


def write_source(folder, **scripts):
    """What stands in for SLIME's source: files with what the hooks use, and these scripts."""
    for name, text in {**NEEDED, **scripts}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


# Processes


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def answers(url):
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def running(*command, ready):
    process = subprocess.Popen([sys.executable, "-m", *map(str, command)], cwd=ROOT, start_new_session=True)
    try:
        assert wait_until(lambda: process.poll() is not None or answers(ready), 60) and process.poll() is None
        yield process
    finally:
        end(process, 1)


@contextmanager
def server(model):
    port = free_port()
    with running(
        "tests.sglang_server", "--model", model, "--port", port, ready=f"http://127.0.0.1:{port}/health"
    ) as process:
        yield f"127.0.0.1:{port}", process


@contextmanager
def router(*addresses):
    port = free_port()
    options = {
        "--host": "127.0.0.1",
        "--port": port,
        "--prometheus-port": free_port(),
        "--log-level": "error",
        "--policy": "manual",  # what the router on PyPI calls the policy that reads X-SMG-Routing-Key
    }
    words = [word for option in options.items() for word in option]
    workers = ("--disable-circuit-breaker", "--worker-urls", *(f"http://{address}" for address in addresses))
    with running("sglang_router.launch_router", *words, *workers, ready=f"http://127.0.0.1:{port}/workers"):
        yield port


class Serving:
    """An HTTP server on a port of its own, in a thread."""

    def __init__(self, app):
        self.port = free_port()
        options = dict(host="127.0.0.1", port=self.port, handle_signals=False, print=None)
        run = partial(web.run_app, app, **options, loop=asyncio.new_event_loop())
        threading.Thread(target=run, daemon=True).start()


def slime_args(base, folder, addresses, router_port, **changes):
    """The parameters of a new run, and SLIME's arguments from our flags, by SLIME's own parser."""
    parameters = RunParameters.of(Config.model_validate(merged(PARAMETERS, changes)))
    return parameters, args_of(parameters, base, folder, addresses, router_port)


def args_of(parameters, base, folder, addresses, router_port, count=None):
    """The same of given parameters, with `count` tasks of each game."""
    from slime.rollout.sglang_rollout import EVAL_PROMPT_DATASET, GenerateState
    from slime.utils import http_utils
    from slime.utils.arguments import get_slime_extra_args_provider, slime_validate_args

    # SLIME keeps these as long as its process lives.
    end_episodes()
    type(GenerateState)._instances.clear()
    EVAL_PROMPT_DATASET.clear()
    http_utils._http_client = None
    games = load_games(parameters.games, parameters.seed)
    tasks = (
        {name: list(game.taskset.tasks(purpose, count or of(game.parameters))) for name, game in games.items()}
        for purpose, of in (("train", attrgetter("train_count")), ("evaluate", attrgetter("eval_count")))
    )
    files.prepare(parameters, *tasks, folder)
    flags = arguments(parameters, base, folder)
    if addresses:
        flags += ["--rollout-external-engine-addrs", *addresses]
        flags = [flag for flag in flags if flag != "--colocate"]
    parser = get_slime_extra_args_provider()(argparse.ArgumentParser(allow_abbrev=False))
    args, _ = parser.parse_known_args(flags)
    # From SLIME's other parsers, SGLang's and the one for debugging.
    args.debug_rollout_only = args.debug_train_only = False
    args.load_debug_rollout_data = None
    args.train_backend = "megatron"
    args.sglang_server_concurrency = 128
    args.sglang_dp_size = 1
    args.context_parallel_size = 1
    args = (slime_validate_args(args) or (args,))[0]  # 0.4 returns another one
    args.sglang_router_ip, args.sglang_router_port = "127.0.0.1", router_port
    args.router_policy = "consistent_hashing"
    return args


def end_episodes():
    """End what a rollout left behind when it raised an error: an episode that plays on would make SLIME's state anew, with
    its own arguments."""
    from slime.utils.async_utils import run

    async def end_them():
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    run(end_them())


def answering(engine):
    """The port of SGLang's stand-in with `engine`, in a thread."""
    return Serving(Server(engine, 0, "").app()).port


# SLIME without processes


class SGLangShaped:
    """An engine, by default a `Babbler`, behind SGLang's interface; now and then it fails or is aborted in the middle."""

    max_context_tokens = 10**6

    def __init__(self, tokenizer, seed, failing=0.0, aborting=0.0, engine=None):
        self.engine, self.rng = engine or Babbler(tokenizer, seed), np.random.default_rng(seed)
        self.failing, self.aborting = failing, aborting
        self.asked, self.params, self.answered = [], [], 0.0
        self.state, self.asked_to_abort = SimpleNamespace(), True

    async def generate(self, input_ids, sampling):
        if self.rng.random() < self.failing:
            raise EngineFailed("gone")
        said = await self.engine.generate(input_ids, sampling)
        if self.rng.random() < self.aborting:
            cut = int(self.rng.integers(len(said.token_ids)))
            said = Generation(said.token_ids[:cut], said.logprobs[:cut], "abort")
            self.state.aborted = self.asked_to_abort
        self.asked.append((list(input_ids), said.token_ids, said.logprobs))
        return said

    async def request(self, input_ids, sampling, sampling_params=None, given_up=lambda: False, more=None):
        said = await self.generate(input_ids, sampling)
        self.params.append((sampling, sampling_params))
        return {"text": "…", "meta_info": meta_info(said)}

    def release(self, session):
        pass


@contextmanager
def slime(tokenizer, engine, folder=None, context_tokens=CONTEXT_TOKENS, **parameters):
    """SLIME with `engine` behind its router, and a run of these parameters; gives its arguments."""
    from slime.rollout import sglang_rollout

    from slim_rl.slime.context import Context

    given = merged(
        {"games": {"matching": {"seating": ["policy", "scripted"]}}, "model": {"turn_tokens": TURN_TOKENS}}, parameters
    )
    state = engine.state = SimpleNamespace(tokenizer=tokenizer, aborted=False)
    args = SimpleNamespace(
        rollout_max_context_len=context_tokens,
        state=state,
        custom_reward_post_process_path="slim_rl.slime.groups.normalise_rewards",
        custom_convert_samples_to_train_data_path=None,
    )
    context = Context.of(args)
    context.parameters, context.engine, context.folder = RunParameters.model_validate(given), engine, folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sglang_rollout, "GenerateState", lambda args: state)
        yield args


def check_sent_is_trained_on(sample, engine):
    """What `engine`, SGLang-shaped, read and said for `sample` is what it trains on; nothing of a failed episode. Returns
    how many requests were for it."""
    from slime.utils.types import Sample

    if sample.status == Sample.Status.FAILED:
        assert sample.remove_sample and (sample.response_length, sample.loss_mask) == (0, [])
        return 0
    mine = [part for part in engine.asked if sample.tokens[: len(part[0])] == part[0]]
    prompt = len(sample.tokens) - sample.response_length
    trained, logprobs = [0] * len(sample.tokens), [0.0] * len(sample.tokens)
    for asked, ids, probabilities in mine:
        end = len(asked) + len(ids)
        assert sample.tokens[len(asked) : end] == ids
        trained[len(asked) : end] = [1] * len(ids)
        logprobs[len(asked) : end] = probabilities
    assert trained[:prompt] == [0] * prompt
    assert sample.loss_mask == trained[prompt:]
    assert sample.rollout_log_probs == logprobs[prompt:]
    return len(mine)


def sample_of(task, index=0, game="matching", group=0):
    """A sample as SLIME's data source makes it."""
    from slime.utils.types import Sample

    row = files.task_line(game, task)
    return Sample(group_index=group, index=index, prompt=row["prompt"], label=row["game_id"], metadata=row["metadata"])


def play(args, sample, evaluation=False, run=run_in_fake_time, **params):
    """What the hook makes of the sample. Waiting takes no time, unless `run` is asyncio.run."""
    from slim_rl.slime.generate import generate

    params = {"max_new_tokens": TURN_TOKENS, "temperature": 1.0, **params}
    return run(generate(args, sample, params, evaluation=evaluation))


def play_to_the_end(args, sample, **params):
    """The same, and on from each interruption."""
    sample = play(args, sample, **params)
    while not isinstance(sample, list) and sample.status == sample.Status.ABORTED:
        args.state.aborted = False
        sample = play(args, sample, **params)
    return sample


def converted(args, samples):
    """The training batch that SLIME's rollout manager makes of the samples."""
    try:
        from slime.data.batch_builder import BatchBuilder

        return BatchBuilder(args).convert(samples)
    except ModuleNotFoundError:  # before 0.4
        from slime.ray.rollout import RolloutManager
    from slime.utils.misc import load_function

    manager = object.__new__(RolloutManager.__ray_metadata__.modified_class)
    manager.args = args
    manager.custom_convert_samples_to_train_data_func = None
    manager.custom_reward_post_process_func = load_function("slim_rl.slime.groups.normalise_rewards")
    return manager._convert_samples_to_train_data(samples)


def data_source(args):
    """SLIME's own, with its buffer."""
    try:
        from slime.data.data_source import RolloutDataSourceWithBuffer
    except ModuleNotFoundError:  # before 0.4
        from slime.rollout.data_source import RolloutDataSourceWithBuffer
    return RolloutDataSourceWithBuffer(args)
