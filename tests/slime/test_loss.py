"""SLIME's own loss, on a batch that our hooks made, is the local backend's. Megatron is left out: one process needs it
for nothing but sizes of groups."""

import argparse
import asyncio
import contextlib
import copy
import importlib
import itertools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from slime.utils.arguments import get_slime_extra_args_provider

from slim_rl.games import load_games
from slim_rl.slime.arguments import arguments
from slim_rl.slime.context import Context
from slim_rl.slime.samples import episodes as episodes_of
from slim_rl.training.grpo import sequences
from slim_rl.training.tiny import tiny_qwen
from slim_rl.training.update import update
from slim_rl.training.weights import Weights
from tests.babbler import Babbler
from tests.echo import EchoEngine, echo_tokenizer
from tests.settings import setting
from tests.slime.support import SLIME_DIR, SGLangShaped, converted, play, sample_of, slime

KUHN = setting("kuhn")
SIZE = 4


def by_token(played, config, state):
    """An estimator that gives each sampled token a value of its own."""
    return [
        [p.episode.rewards[p.seat] + n / 10 for n in range(sum(p.episode.traces[p.seat].loss_mask))] for p in played
    ]


@pytest.fixture(scope="module")
def loss():
    folder = Path(SLIME_DIR, "slime/backends/megatron_utils")
    package, core = ModuleType("slime.backends.megatron_utils"), ModuleType("megatron.core")
    package.__path__ = [str(folder)]  # without its __init__, which patches Megatron
    core.mpu = SimpleNamespace(
        get_context_parallel_world_size=lambda: 1,
        get_data_parallel_world_size=lambda with_context_parallel: 1,
        get_tensor_model_parallel_group=lambda: None,
        is_pipeline_last_stage=lambda: True,
    )
    modules = {"megatron": ModuleType("megatron"), "megatron.core": core, package.__name__: package}
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        yield importlib.import_module("slime.backends.megatron_utils.loss")


def kuhn():
    """Two seats of the policy."""
    legal = Babbler(KUHN.tokenizer, 2, ("[check]", "[bet]", "[fold]", "[call]"))
    return {"kuhn": {"seating": ["policy", "policy"]}}, KUHN.tokenizer, legal


def echo():
    """One seat that calls tools."""
    tokenizer = echo_tokenizer()
    return {"tests.echo": {}}, tokenizer, EchoEngine(tokenizer, looks=2)


@pytest.mark.parametrize(
    ("game", "train"),
    [
        (kuhn, {"average_over": "tokens"}),
        (kuhn, {"average_over": "episodes", "advantage": "role"}),
        (kuhn, {"average_over": "episodes", "advantage": f"{__name__}:by_token"}),
        (kuhn, {"divide_by_std": False, "clip_high": 0.28, "temperature": 0.7, "kl_coefficient": 0.1}),
        (kuhn, {"average_over": "episodes", "kl_coefficient": 0.2, "kl_estimator": "k2"}),
        (echo, {"advantage": f"{__name__}:by_token"}),
        (echo, {"average_over": "episodes", "advantage": f"{__name__}:by_token", "clip_low": 0.1}),
    ],
)
def test_slimes_loss_is_ours(loss, game, train, base):
    games, tokenizer, engine = game()
    (name,) = games
    # The tokens are sampled from another model, whose log-probs are far from these.
    train = {"filters": ["no_failed_episode"], "max_grad_norm": 1e9, "max_logprob_gap": 100.0, **train}
    engine = SGLangShaped(tokenizer, 2, engine=engine)
    given = {"games": {"matching": None, **games}, "train": train, "model": {"turn_tokens": 200}}
    with slime(tokenizer, engine, context_tokens=4000, **given) as args:
        parameters = Context.of(args).parameters
        tasks = list(load_games(parameters.games, 0)[name].taskset.tasks("train", 4))
        limits = {"max_new_tokens": 200, "temperature": 1.0}
        played = [play(args, sample_of(tasks[n // SIZE], n, name, group=n // SIZE), **limits) for n in range(16)]
        check_rollout_ids(played)
        samples = list(itertools.chain.from_iterable(s if isinstance(s, list) else [s] for s in played))
        data = converted(args, samples)
    assert len(set(data["rollout_ids"])) == len(played) <= len(samples)

    model, reference = (tiny_qwen(tokenizer, 4000, seed, 1, 32) for seed in (0, 1))
    episodes = episodes_of(samples)
    groups = [episodes[i : i + SIZE] for i in range(0, len(episodes), SIZE)]
    local = copy.deepcopy(model)
    weights = Weights(local)
    weights.frozen = reference
    told = asyncio.run(update(parameters.train, weights, [], sequences(parameters.train, groups, {})))

    flags = arguments(parameters, base, base)
    slimes, _ = get_slime_extra_args_provider()(argparse.ArgumentParser(allow_abbrev=False)).parse_known_args(flags)
    slimes.calculate_per_token_loss = "--calculate-per-token-loss" in flags  # an argument of Megatron's
    slimes.allgather_cp = False
    for stride in (1, 2):  # microbatches, which may part the seats of an episode
        theirs = copy.deepcopy(model)
        value = slimes_loss(loss, slimes, data, theirs, reference, stride)
        assert value == pytest.approx(told["loss"], abs=1e-6)
        for one, other in zip(theirs.parameters(), local.parameters(), strict=True):
            assert torch.allclose(one.grad, other.grad, rtol=1e-3, atol=1e-6)


def check_rollout_ids(played):
    """SLIME's own check of samples that share an episode."""
    name = "validate_rollout_id_annotated"
    for module, attribute in (
        ("slime.observability.rollout_data_utils", name),  # 0.4
        ("slime.ray.rollout", name),
        ("slime.ray.rollout", f"_{name}"),  # v0.3.1
    ):
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), attribute)([played])
    raise AssertionError("SLIME has no such check")


def slimes_loss(loss, args, data, model, reference, stride):
    """The loss of a batch, and its gradient in `model`, as SLIME and Megatron compute them in one process."""
    data = {
        **data,
        "tokens": [torch.tensor(tokens) for tokens in data["tokens"]],
        "loss_masks": [torch.tensor(mask) for mask in data["loss_masks"]],
        "rollout_log_probs": [torch.tensor(logprobs) for logprobs in data["rollout_log_probs"]],
        "rollout_mask_sums": torch.tensor(data["rollout_mask_sums"], dtype=torch.float),
        "total_lengths": [len(tokens) for tokens in data["tokens"]],
    }
    data["unconcat_tokens"] = data["tokens"]
    lengths = {name: data[name] for name in ("total_lengths", "response_lengths", "unconcat_tokens")}
    with torch.no_grad():
        _, found = loss.get_log_probs_and_entropy(logits_of(reference, data["tokens"]), args=args, **lengths)
    data["ref_log_probs"] = found["log_probs"]
    loss.compute_advantages_and_returns(args, data)
    assert all(isinstance(reward, float) for reward in data["rewards"])  # SLIME logs their mean
    total, normalizer, episodes = torch.zeros(()), 0, len(set(data["rollout_ids"]))
    for start in range(stride):
        part = range(start, len(data["tokens"]), stride)
        batch = {name: [values[i] for i in part] for name, values in data.items()}
        value, tokens, _ = loss.loss_function(args, batch, stride, episodes, logits_of(model, batch["tokens"]))
        total, normalizer = total + value, normalizer + tokens
    total = total / normalizer  # Megatron: by tokens, or by the number of microbatches
    total.backward()
    return total.item()


def logits_of(model, tokens):
    return torch.cat([model(ids[None]).logits[0] for ids in tokens])[None]
