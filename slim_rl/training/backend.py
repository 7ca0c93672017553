"""What trains the policy, behind one interface: this process, or a service."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedTokenizerBase

from slim_rl.engines.engine import Engine
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.memory import enough_memory
from slim_rl.runtime.team import ALONE, Team
from slim_rl.training.checkpoint import save_model
from slim_rl.training.config import TrainConfig
from slim_rl.training.optimizer import adamw, muon_and_adamw, restore, set_learning_rate
from slim_rl.training.update import TrainedSequence, update
from slim_rl.training.weights import Weights


class Backend(Protocol):
    """Holds the weights of the policy. `grpo.Trainer` calls it; another engine needs no more than this."""

    @property
    def engine(self) -> Engine:
        """Samples from the policy as the last update left it."""

    async def load(self, state: dict[str, Any] | None, ended: bool = False) -> None:
        """Begin with what `save` returned, or with the first weights. Called once, before all others.

        Args:
            ended: all steps have been taken; no more is asked for than `export`.
        """

    async def update(self, sequences: Sequence[TrainedSequence], learning_rate: float) -> dict[str, float]:
        """Follow the gradient; without sequences there is none. Returns metrics by name.

        Raises:
            Diverged: a number is not finite.
            UserError: the trainer's log-probs are not the rollout's (`train.max_logprob_gap`), or memory ran out.
        """

    async def save(self) -> dict[str, Any]:
        """Tensors and plain values from which `load` goes on as if nothing had happened."""

    def swap_averages(self) -> None:
        """Exchange the weights and their averages, if averages are kept. The averages are what is evaluated."""

    async def export(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Write the weights as a Hugging Face checkpoint; it appears by rename."""


class LocalBackend:
    """Trains in this process.

    Args:
        engine: samples from `weights.sampler`.
        team: shares each step's sequences.
    """

    def __init__(self, config: TrainConfig, weights: Weights, engine: LocalEngine, team: Team = ALONE):
        self.config, self.weights, self.engine, self.team = config, weights, engine, team
        # Averaging iterates: Polyak and Juditsky 1992, SIAM J. Control Optim. 30:4.
        self.averages = _copied(weights) if config.averaging_decay else {}
        self.optimizers = make_optimizers(config, weights)

    async def load(self, state: dict[str, Any] | None, ended: bool = False) -> None:
        if state:
            restore(state, self.weights, self.optimizers)
            weights = self.weights.trained
            self.averages = {name: mean.to(weights[name].device) for name, mean in state["averages"].items()}

    async def update(self, sequences: Sequence[TrainedSequence], learning_rate: float) -> dict[str, float]:
        self.engine.reset()
        metrics = {}
        if sequences:
            set_learning_rate(self.optimizers, learning_rate)
            remedy = "take fewer train.microbatch_tokens or train.gradient_checkpointing"
            with enough_memory("in an update of the weights", remedy):
                metrics = await update(self.config, self.weights, self.optimizers, sequences, self.team)
        for name, mean in self.averages.items():
            mean.lerp_(self.weights.trained[name].detach(), 1 - self.config.averaging_decay)
        return metrics

    async def save(self) -> dict[str, Any]:
        return {
            "weights": self.weights.state(),
            "averages": self.averages,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def swap_averages(self) -> None:
        if self.averages:
            last = _copied(self.weights)
            self.weights.load(self.averages)
            self.averages = last
        self.engine.reset()

    async def export(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        save_model(folder, self.weights.sampler, tokenizer)


def _copied(weights: Weights) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in weights.state().items()}


def make_optimizers(config: TrainConfig, weights: Weights) -> list[torch.optim.Optimizer]:
    rate, decay, betas = config.learning_rate, config.weight_decay, (0.9, 0.95)
    return (muon_and_adamw if config.optimizer == "muon" else adamw)(weights, rate, decay, betas)
