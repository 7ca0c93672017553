"""Parameters of warm start and training."""

from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from slim_rl.core.parameters import GameParameters, Section
from slim_rl.games import game_parameters
from slim_rl.players.config import Price
from slim_rl.rollout.filters import FILTERS
from slim_rl.runtime.imports import check_name

# Not imported: what reads parameters does not depend on the estimators.
ESTIMATORS = sorted(m.name for m in iter_modules([str(Path(__file__).with_name("advantages"))]))


class WarmstartConfig(Section):
    """Imitation of demonstrations, for the tiny model, and for a checkpoint if asked for."""

    checkpoint: bool = False
    """Whether a checkpoint that `model.base` names imitates, too. If not, training starts from it as it is."""
    demonstrations: int = Field(32_000, ge=1)
    batch: int = Field(32, ge=1)
    """Demonstrations per optimiser step."""
    learning_rate: float | None = Field(None, gt=0, le=10)
    """null: 2.5e-3 for the tiny model, which Muon trains, and 3e-4 for a checkpoint, which AdamW trains."""
    warmup_steps: int = Field(100, ge=0)
    stop_probability: float = Field(0.55, gt=0, lt=1)
    """Probability that a demonstrator who may end the game does so instead of taking one more turn. It takes
    1 / stop_probability - 1 turns before that on average."""
    last_seat_demonstrations: int = Field(0, ge=0)
    """Number of first demonstrations that all show the last of the policy's seats. After them the seats alternate."""
    stop_at: float | None = Field(None, gt=0, le=1)
    """For a checkpoint: stop before the demonstrations are used up, once, for each number of earlier turns, this share of
    last moves is right on held-out demonstrations. null: use all."""

    @model_validator(mode="after")
    def _every_seat_is_shown(self) -> "WarmstartConfig":
        if self.last_seat_demonstrations >= self.demonstrations:
            raise ValueError("warmstart.last_seat_demonstrations must be less than warmstart.demonstrations")
        return self


class LoraConfig(Section):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685); they need the package peft."""

    rank: int = Field(16, ge=1)
    alpha: int | None = Field(None, ge=1)
    """An adapter counts alpha / rank times. null: 2 * rank."""
    targets: tuple[str, ...] = ()
    """The layers that get one, by the end of their names (q_proj). Empty: all linear layers but the head."""


class TrainConfig(Section):
    """Policy-gradient training on groups of episodes (GRPO)."""

    backend: Literal["local", "slime", "tinker"] = "local"
    """`local`: this machine; `slime`: SLIME on a cluster, see the section `slime`; `tinker`: adapters on a server, see the
    section `tinker`."""
    steps: int = Field(100, ge=1)
    games_per_step: int = Field(16, ge=1)
    """Groups per step. All episodes of a group play the same task."""
    samples_per_game: int = Field(8, ge=1)
    """Episodes per group."""
    temperature: float = Field(1.0, gt=0)
    filters: tuple[str, ...] = ("no_failed_episode",)
    """A group that one of these filters drops is replaced by a group of a further task. A filter is a
    function of `slim_rl/rollout/filters.py`, by name, or your own, by import path (`my_module:my_filter`)."""
    lora: LoraConfig | None = None
    """Train adapters in place of all weights; they are merged where the model is saved. For the local backend."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon for the layers' matrices, AdamW for the rest."""
    learning_rate: float = Field(2e-4, gt=0, le=10)
    warmup_steps: int = Field(5, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    minibatches: int = Field(1, ge=1)
    """Optimiser steps per batch of episodes."""
    advantage: str = "group"
    """The advantage estimator. `group`: compares the reward with those of the same task and seat (GRPO).
    `role`: with a moving average of what the seat earned before (SPIRAL). `my_module:my_function`: your own,
    see `slim_rl/training/advantages`."""
    divide_by_std: bool = True
    """For `group`: divide by the group's standard deviation (GRPO), or not (Dr. GRPO)."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    importance_cap: float | None = Field(None, gt=0)
    """Truncated importance sampling, for a rollout whose log-probs differ from the trainer's (model.precision): the clip
    compares with the trainer's own log-probs, and a token counts as many times as it is likelier here than in the rollout,
    at most this (Yao et al. 2025, fengyao.notion.site/off-policy-rl). It needs `train.minibatches: 1`. null: off; the clip
    compares with the rollout's."""
    max_logprob_gap: float = Field(0.2, gt=0)
    """Training stops where rollout and trainer give the sampled tokens log-probs that differ by more, on average. Not for
    SLIME."""
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the KL divergence to the base model. With 0 no reference model is kept in memory."""
    kl_estimator: Literal["k2", "k3"] = "k3"
    """As a loss, `k3` (GRPO) has the gradient of KL(base, policy), `k2` that of KL(policy, base)."""
    averaging_decay: float = Field(0.0, ge=0, lt=1)
    """EMA decay of the weights; 0 disables. When on, the EMA is the trained model. Stabilises self-play."""
    average_over: Literal["tokens", "episodes"] = "episodes"
    """What has equal weight in the loss: every episode, whose seats are averaged together (GRPO), or every token (DAPO)."""
    microbatch_tokens: int | None = Field(None, ge=1)
    """Padded tokens in one forward and backward pass. It bounds memory and changes only the last digits. null: what the
    model's sizes allow in 1.25 GB, at most 2,048; on a GPU in a quarter of its memory, at most 16,384."""
    gradient_checkpointing: bool = False
    """Compute the activations of a layer again in the backward pass, which saves memory where sequences are long and
    takes a third longer. Disables prompt sharing. For the local backend."""
    checkpoint_minutes: float = Field(0.0, ge=0)
    """Minutes between checkpoints, at least; 0: after each step. A checkpoint has 12 bytes for each weight
    that is trained."""
    snapshot_every: int | None = Field(None, ge=1)
    """Steps between frozen copies of the policy, from the first step on. They are evaluated."""
    wandb_project: str | None = None
    """Weights & Biases project that gets the training curves, too; needs the package wandb, with `backend: slime` in
    SLIME's Python. WANDB_MODE=offline writes them to disk alone."""

    @field_validator("filters")
    @classmethod
    def _filters_exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            check_name("a filter of train.filters", name, FILTERS)
        return names

    @field_validator("advantage")
    @classmethod
    def _the_estimator_exists(cls, name: str) -> str:
        check_name("train.advantage", name, ESTIMATORS)
        return name

    @model_validator(mode="after")
    def _groups_and_minibatches_fit(self) -> "TrainConfig":
        if self.games_per_step * self.samples_per_game % self.minibatches:
            raise ValueError(
                "train.games_per_step times train.samples_per_game must be a multiple of train.minibatches"
            )
        if self.importance_cap and self.minibatches > 1:
            raise ValueError("train.importance_cap needs train.minibatches 1")
        if self.samples_per_game == 1 and (self.advantage == "group" or "reward_varies" in self.filters):
            raise ValueError(
                "with train.samples_per_game 1 a group has nothing to compare: take another train.advantage "
                "than group, and train.filters without reward_varies"
            )
        return self

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0. It rises over the first `warmup_steps`."""
        return self.learning_rate * min(1.0, (step + 1) / max(self.warmup_steps, 1))


TINKER = "the Tinker API"
"""Its name in bills; no service can have it."""


class TinkerPrice(Price):
    """Dollars per million tokens."""

    train: float = Field(ge=0)


class TinkerConfig(Section):
    """A server that trains LoRA adapters (`train.backend: tinker`), see docs/tinker.md. What it trains is in `train`. The
    key is in the environment, TINKER_API_KEY."""

    base_url: str | None = Field(None, pattern=r"^https?://[^\s@]+$")
    """URL of a server of one's own, which may need no key; null: the hosted service."""
    base_model: str | None = None
    """The server's name for the model; null: `model.base`. Nothing can check that both have the same weights, and the adapter
    is merged into those of `model.base`."""
    rank: int = Field(32, ge=1)
    """Rank of the adapters; all linear layers but the head have one."""
    seed: int | None = Field(None, ge=0)
    """Seed of the adapters' first weights; null: `seed`."""
    deadline_seconds: float = Field(600.0, gt=0)
    """Time limit of one call. An episode is then played again; a training step ends the run, which can be resumed."""
    price: TinkerPrice | None = None
    """null: unknown, and no dollars are counted."""
    max_cost_dollars: float | None = Field(None, gt=0)
    """Budget of one training, interrupted parts included; then it stops and can be resumed. null for no limit."""
    loss_scale: Literal["sum", "mean"] = "sum"
    """How the server adds up the losses of tokens: `sum`, as the API describes it; `mean`, over a sequence and then over
    sequences, as SkyRL's JAX backend does."""

    @model_validator(mode="after")
    def _a_budget_needs_a_price(self) -> "TinkerConfig":
        if self.max_cost_dollars is not None and self.price is None:
            raise ValueError("tinker.max_cost_dollars needs tinker.price")
        return self


class BenchmarkConfig(Section):
    """Held-out tasks of a game that the policy plays now and then while it is trained. The game need not be one of
    those that it is trained on."""

    game: str
    """A name as in `games`."""
    parameters: SerializeAsAny[GameParameters]
    """The game's parameters, as in `games`."""
    tasks: int = Field(500, ge=1)
    """The first so many of the game's held-out tasks."""
    samples: int = Field(1, ge=1)
    """Episodes of each task; pass@k is known for k up to this."""
    temperature: float = Field(1.0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _of_the_game(cls, section: Any) -> Any:
        if not isinstance(section, dict) or not isinstance(section.get("game"), str):
            return section
        parameters = section.get("parameters")
        parsed = parameters if isinstance(parameters, GameParameters) else game_parameters(section["game"], parameters)
        return {**section, "parameters": parsed}
