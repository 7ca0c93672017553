"""Parameters of warm start and training."""

from typing import Literal

from pydantic import Field, model_validator

from slim_rl.core.parameters import Section


class WarmstartConfig(Section):
    """Imitation, for the tiny model."""

    demonstrations: int = Field(28_800, ge=1)
    batch: int = Field(8, ge=1)
    """Demonstrations an optimiser step."""
    learning_rate: float = Field(2.5e-3, gt=0)
    warmup_steps: int = Field(100, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    stop_probability: float = Field(0.55, gt=0, lt=1)
    """How often a demonstrator who may close does so instead of going on; in the matching game's first seat it asks
    1 / this - 1 questions a game."""
    max_questions: int = Field(9, ge=1)
    """Proposing and how to ask are taught up to so many questions, and the second seat is asked no more."""
    last_seat_demonstrations: int = Field(0, ge=0)
    """The first so many demonstrations are all of the last seat that the policy takes; then its seats alternate.
    Without effect if it takes one seat."""
    checkpoint_every: int = Field(40, ge=1)
    """Steps between checkpoints to go on from after an interruption."""

    @model_validator(mode="after")
    def _every_seat_is_shown(self) -> "WarmstartConfig":
        if self.last_seat_demonstrations >= self.demonstrations:
            raise ValueError("last_seat_demonstrations must be less than demonstrations")
        return self


class TrainConfig(Section):
    """GRPO."""

    backend: Literal["local", "slime"] = "local"
    """`local`: this machine; `slime`: SLIME on a cluster, see `SlimeConfig`."""
    steps: int = Field(100, ge=1)
    games_per_step: int = Field(8, ge=1)
    samples_per_game: int = Field(16, ge=1)
    temperature: float = Field(1.0, gt=0)
    filters: tuple[FilterName, ...] = ("no_failed_episode", "reward_varies")
    """Groups that any of these drops are replaced by groups of further games."""
    max_oversampling: float = Field(2.0, ge=1)
    """Stop looking for full batches after so many times the games a step needs (`local` alone)."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon for the layers' matrices, AdamW for the rest."""
    learning_rate: float = Field(2e-4, gt=0)
    warmup_steps: int = Field(5, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    minibatches: int = Field(1, ge=1)
    """Optimiser steps for each batch of episodes."""
    advantage: Literal["group", "role", "return"] = "group"
    """`group`: the reward compared with those of the same game and seat (GRPO); `role`: with a moving average of
    what the seat has earned so far (SPIRAL); `return`: with nothing."""
    divide_by_std: bool = True
    """GRPO's advantage; without it Dr. GRPO's."""
    role_baseline_decay: float = Field(0.95, ge=0, lt=1)
    """How much of the moving average stays after one more reward."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the KL divergence to the base model; 0 keeps no reference model in memory."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of a bonus for the entropy of every sampled token's distribution: keeps the policy exploring, and
    self-play from running in circles."""
    averaging_decay: float = Field(0.0, ge=0, lt=1)
    """Of a moving average of the weights over training steps; above 0 that average is the trained model and the
    snapshots. In self-play weights go in circles around what their average comes to."""
    average_over: Literal["tokens", "episodes"] = "tokens"
    """What counts the same in the loss: every token, or every episode, however many seats were trained in it."""
    microbatch_tokens: int = Field(8192, ge=1)
    """Padded tokens in one forward and backward pass; bounds memory, and changes only the last digits."""
    checkpoint_every: int = Field(1, ge=1)
    snapshot_every: int | None = Field(None, ge=1)
    """Steps between frozen copies, from the first step on: opponents, and earlier selves to be evaluated."""
    pool_size: int = Field(0, ge=0)
    """So many of the newest snapshots are the opponents that the player `pool` is drawn from."""
    opponents: Literal["uniform", "win_rate"] = "uniform"
    """How it is drawn: all alike, or those first that the policy loses to."""

    @model_validator(mode="after")
    def _minibatches_are_equal(self) -> "TrainConfig":
        if self.games_per_step * self.samples_per_game % self.minibatches:
            raise ValueError("games_per_step times samples_per_game must be a multiple of minibatches")
        return self

    @model_validator(mode="after")
    def _groups_have_members(self) -> "TrainConfig":
        if self.samples_per_game == 1 and (self.advantage == "group" or "reward_varies" in self.filters):
            raise ValueError(
                "with samples_per_game 1 there is nothing to compare with in a group: take another "
                "advantage than group, and filters without reward_varies"
            )
        return self
