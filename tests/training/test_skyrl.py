"""Training on SkyRL's Tinker server, a real one, on the processor: `make test-tinker`. It takes some minutes."""

import asyncio
import copy
import os
import socket
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slim_rl.core.episode import TokenTrace
from slim_rl.core.errors import UserError
from slim_rl.core.parameters import RewardConfig
from slim_rl.engines.engine import Sampling
from slim_rl.engines.model import load_model
from slim_rl.games import load_games
from slim_rl.players.ledger import Ledger
from slim_rl.runtime.process import end, wait_until
from slim_rl.training.checkpoint import save_model
from slim_rl.training.config import LoraConfig, TinkerConfig, TrainConfig
from slim_rl.training.tinker import TinkerBackend, TinkerServer
from slim_rl.training.update import TrainedSequence, update
from slim_rl.training.weights import Weights
from tests.settings import setting
from tests.training.short import train as train_kuhn
from tests.training.test_grpo import logprobs, sampled_with

ENVIRONMENT = os.environ.get("SKYRL_ENVIRONMENT", "")
pytestmark = pytest.mark.skipif(not ENVIRONMENT, reason="SKYRL_ENVIRONMENT names no environment of SkyRL")


class Own:
    """SkyRL's server with a base model; it can be killed and started again on what it has stored."""

    def __init__(self, base: Path, folder: Path):
        self.base, self.folder = base, folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        programs = Path(ENVIRONMENT).resolve() / "bin"
        command = ["uv", "run", "--no-project", "--offline", "--", "python", "-m", "skyrl.tinker.api"]
        options = {
            "base-model": self.base, "backend": "jax", "host": "127.0.0.1", "port": self.port,
            "backend-config": '{"max_lora_adapters": 64, "max_lora_rank": 16}',
            "checkpoints-base": self.folder / "checkpoints", "database-url": f"sqlite:///{self.folder}/tinker.db",
        }  # fmt: skip
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        environment = {
            **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "VIRTUAL_ENV": str(programs.parent),
            "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "PYTHONPATH": "",
        }  # fmt: skip
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: self.process.poll() is not None or self.listens(), 120.0, every_seconds=0.5)
        assert self.listens(), (self.folder / "server.log").read_text()[-3000:]

    def listens(self) -> bool:
        with socket.socket() as knock:
            return knock.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        end(self.process, grace_seconds=0.0)


@pytest.fixture(scope="module")
def server(taught, tmp_path_factory):
    folder = tmp_path_factory.mktemp("skyrl")
    save_model(folder / "base", taught, setting("kuhn").tokenizer)
    own = Own(folder / "base", folder)
    yield own
    own.kill()


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)


def settings(server, **changes):
    options = {"base_url": server.url, "base_model": str(server.base), "rank": 16, "seed": 3, "loss_scale": "mean"}
    return TinkerConfig(**options | changes)


def backend_of(server, config):
    return TinkerBackend(
        config, settings(server), server.base, server.folder / "adapters", 128, Ledger(None, None, "train")
    )


def train(server, folder, stops=lambda metrics: False, **changes):
    """The log of a run in which a policy that plays Kuhn poker is paid for betting first, and what trained it."""
    at, log = setting("kuhn", ("policy", "random")), []
    options = dict(games_per_step=4, samples_per_game=4, learning_rate=5e-3, warmup_steps=0, max_logprob_gap=1e-3)
    config = TrainConfig(**options | changes)
    backend = backend_of(server, config)
    reward = RewardConfig(function="tests.training.estimators:bets")
    game = load_games({"kuhn": at.game.parameters.model_copy(update={"reward_function": reward})}, 0)["kuhn"]

    def on_step(metrics):
        log.append(metrics)
        print({name: metrics.get(name) for name in ("reward", "loss", "grad_norm", "logprob_gap")})
        if stops(metrics):
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        train_kuhn(config, backend, folder, at, game, paid=True, on_step=on_step)
    return log, backend


def test_a_bandit_is_learnt_survives_a_kill_of_both_sides_and_becomes_an_ordinary_checkpoint(server, tmp_path):
    log, _ = train(server, tmp_path, steps=20, stops=lambda metrics: metrics["reward"] > 0.9)
    assert log[0]["reward"] < 0.8 and log[-1]["reward"] > 0.9
    server.kill()
    server.start()
    again, backend = train(server, tmp_path, steps=len(log) + 1)
    assert again[:-1] == log and again[-1]["reward"] > log[0]["reward"] + 0.2, (
        "the server has the weights that were learnt"
    )
    assert all(metrics["logprob_gap"] < 1e-4 for metrics in again)

    asyncio.run(backend.export(tmp_path / "trained"))
    merged, _ = load_model(tmp_path / "trained")
    for seed in range(4):
        prompt = list(range(3 + seed, 40))
        drawn = asyncio.run(backend.generate(prompt, Sampling(12, seed=seed)))
        trace = TokenTrace(prompt.copy(), [0] * len(prompt), [0.0] * len(prompt))
        trace.extend(drawn.token_ids, drawn.logprobs)
        assert torch.allclose(logprobs(merged, trace), sampled_with(trace), atol=1e-4)


@pytest.mark.parametrize("kl", [{}, {"kl_coefficient": 0.3}])
def test_an_update_has_the_loss_and_the_gradient_norm_of_the_local_backend(server, taught, tmp_path, kl):
    config = TrainConfig(max_grad_norm=1e9, max_logprob_gap=10.0, **kl)
    backend, drawn = backend_of(server, config), torch.Generator().manual_seed(0)
    asyncio.run(backend.load(None))
    newest = max(server.folder.glob("checkpoints/*/sampler_weights/*.tar.gz"), key=lambda file: file.stat().st_mtime)
    with tarfile.open(newest) as archive:
        archive.extractall(tmp_path, filter="data")
    (stored,) = tmp_path.rglob("adapter_model.safetensors")
    weights, matrices = Weights(copy.deepcopy(taught), lora=LoraConfig(rank=16, alpha=32)), load_file(stored)
    weights.load({n: matrices["base_model.model." + n.replace(".default", "")] for n in weights.trained})
    for _ in range(5):
        batch = []
        for n in range(6):
            ids = torch.randint(3, 300, (40,), generator=drawn).tolist()
            mask = [0] * 12 + [1] * (8 + n) + [0] * 6 + [1] * (14 - n)
            trace = TokenTrace(ids, mask, [0.0] * 40)
            with torch.no_grad():
                own = logprobs(taught, trace)
            noise = 0.0 if kl else 0.2 * torch.randn(len(own), generator=drawn)
            old = iter((own + noise).tolist())
            trace.logprobs = [next(old) if sampled else 0.0 for sampled in mask]
            batch.append(TrainedSequence(trace, float(torch.randn((), generator=drawn)), n // 2))
        expected = asyncio.run(update(config, weights, [torch.optim.SGD(weights.trained.values(), lr=0.0)], batch))
        metrics = asyncio.run(backend.update(batch, 0.0))
        for name in ("loss", "grad_norm", "clipped_fraction", "logprob_gap_mean"):
            assert metrics[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name


def test_the_models_of_the_server_are_known_before_a_run(server):
    asyncio.run(TinkerServer(settings(server)).check())
    with pytest.raises(UserError, match=r"cannot train other, but .*; set tinker\.base_model"):
        asyncio.run(TinkerServer(settings(server, base_model="other")).check())
