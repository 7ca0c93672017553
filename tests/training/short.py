"""Short trainings on Kuhn poker."""

import asyncio

import torch

from slim_rl.engines.local import LocalEngine
from slim_rl.rollout.seating import PolicyRules, Seating
from slim_rl.rollout.tasks import Mixture
from slim_rl.training.backend import LocalBackend
from slim_rl.training.grpo import Rollouts, Trainer
from slim_rl.training.weights import Weights
from tests.settings import setting


def train(config, backend, folder, at=None, game=None, paid=False, benchmarks=None, on_step=lambda metrics: None):
    """The log of a run that goes on from what `folder` holds. It tells no time."""
    at, log = at or setting("kuhn"), []
    maker = PolicyRules(at.renderer, max_turn_tokens=12, temperature=1.0).maker(backend.engine)
    tasks = Mixture({"kuhn": at.tasks}, {"kuhn": 1.0})
    rollouts = Rollouts(tasks, Seating({"kuhn": game or at.game}, {"policy": maker}, seed=0), 64, paid)

    def noted(metrics):
        log.append(metrics)
        on_step(metrics)

    asyncio.run(Trainer(config, backend, rollouts, folder, benchmarks, clock=lambda: 0.0).train(noted))
    return log


def local(config, model, dtype=torch.float32):
    """The backend that trains `model`."""
    weights = Weights(model, dtype, config.lora, reference=bool(config.kl_coefficient))
    return LocalBackend(config, weights, LocalEngine(weights.sampler))


def same_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
