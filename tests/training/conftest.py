"""A tiny model that has learnt the moves of Kuhn poker, and a way to be killed."""

import asyncio
from contextlib import contextmanager

import pytest

import slim_rl.rollout.store
from slim_rl.training import benchmarks, grpo
from slim_rl.training.config import WarmstartConfig
from slim_rl.training.demonstrations import Demonstrations, encode_tree
from slim_rl.training.imitation import imitate
from slim_rl.training.tiny import tiny_qwen
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
    asyncio.run(imitate(warm, model, batch, tmp_path_factory.mktemp("taught")))
    return model


class Killed(BaseException):
    pass


@pytest.fixture
def killed(monkeypatch):
    """`with killed(moment): ...` dies in its second shard, checkpoint or rollout, or after its second benchmark."""

    @contextmanager
    def kill(moment):
        calls = 0
        module, name = {
            "rollout": (grpo, "collect"),
            "shard": (slim_rl.rollout.store, "write_shard"),
            "checkpoint": (grpo, "save_state"),
            "benchmark": (benchmarks, "collect"),
        }[moment]
        original = getattr(module, name)

        def count():
            nonlocal calls
            calls += 1
            if calls == 2 and moment != "benchmark":
                raise Killed

        def write(*arguments, **options):
            count()
            return original(*arguments, **options)

        async def play(*arguments, **options):
            count()
            result = await original(*arguments, **options)
            if calls == 2:
                raise Killed
            return result

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(module, name, play if name == "collect" else write)
            yield

    return kill
