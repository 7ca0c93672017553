"""A tiny model that has learnt the moves of Kuhn poker, and a way to be killed."""

import asyncio
import itertools
from contextlib import contextmanager

import pytest

import slim_rl.rollout.store
from slim_rl.rollout.seating import PolicyRules, Request, Seating
from slim_rl.training import benchmarks, grpo
from slim_rl.training.config import WarmstartConfig
from slim_rl.training.demonstrations import Demonstrations, encode_tree
from slim_rl.training.imitation import imitate
from slim_rl.training.tiny import tiny_qwen
from slim_rl.training.update import TrainedSequence
from slim_rl.training.weights import Weights
from tests.settings import setting


@pytest.fixture(scope="session")
def taught(tmp_path_factory):
    """It nearly always makes legal moves. Do not change it: all tests share it."""
    at = setting("kuhn")
    model = tiny_qwen(at.tokenizer, max_context_tokens=128, seed=0)
    shown = Demonstrations({"kuhn": at.game}, count=240, last_seat=0)

    def batch(step):
        return [encode_tree(shown[n], at.renderer, 0.5) for n in range(step * 8, step * 8 + 8)]

    warm = WarmstartConfig(demonstrations=240, batch=8, warmup_steps=5)
    asyncio.run(imitate(warm, Weights(model), batch, tmp_path_factory.mktemp("taught")))
    return model


@pytest.fixture
def sequences(engine, renderer, tasks, matching):
    """Six episodes of a model with random weights, with made-up advantages."""
    policy = PolicyRules(renderer, max_turn_tokens=12, temperature=1.0).maker(engine)
    seats = Seating({"matching": matching}, {"policy": policy}, seed=0)
    requests = [Request(f"e/{i}", "matching", tasks[i % 2], ("policy", "scripted")) for i in range(6)]

    async def play():
        return await asyncio.gather(*map(seats.play, requests))

    traces = [episode.traces["player-1"] for episode in asyncio.run(play())]
    return [TrainedSequence(trace, i - 2.5, i) for i, trace in enumerate(traces)]


class Killed(BaseException):
    pass


@pytest.fixture
def killed(monkeypatch):
    """`with killed(moment): ...` dies in its second shard, checkpoint or rollout, or after its second benchmark."""

    @contextmanager
    def kill(moment):
        module, name = {
            "rollout": (grpo, "collect"),
            "shard": (slim_rl.rollout.store, "write_shard"),
            "checkpoint": (grpo, "save_state"),
            "benchmark": (benchmarks, "collect"),
        }[moment]
        original, calls = getattr(module, name), itertools.count(1)

        def dying(*arguments, **options):
            if next(calls) != 2:
                return original(*arguments, **options)
            if moment == "benchmark":
                return dies_after(original(*arguments, **options))
            raise Killed

        async def dies_after(work):
            await work
            raise Killed

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(module, name, dying)
            yield

    return kill
