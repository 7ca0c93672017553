"""Parameters of SLIME."""

from typing import Literal

from pydantic import Field, model_validator

from slim_rl.core.parameters import Section


class SlimeConfig(Section):
    """How SLIME uses the GPUs (`train.backend: slime`). What it trains is in `train`."""

    directory: str | None = None
    """SLIME's source (github THUDM/slime). Megatron-LM's is expected beside it."""
    python: str = "python3"
    """The Python that has SLIME's dependencies and Ray; in SLIME's container image /usr/bin/python3."""
    ray_address: str | None = Field(None, pattern=r"^https?://")
    """A running cluster's job server (http://HEAD:8265). Without it, and without RAY_API_SERVER_ADDRESS in the
    environment, the run starts a cluster of this machine."""
    mode: Literal["sync", "async", "fully_async"] = "sync"
    """`sync`: sample, then train. `async`: sample the next step's episodes while this one trains. `fully_async`: do not
    wait for the longest episode either; episodes continue across weight updates, so their beginnings come from older
    weights. The last two need `rollout_gpus`. They help with partners behind an API, who take most of a turn's time."""
    nodes: int = Field(1, ge=1)
    """Nodes that train."""
    gpus_per_node: int = Field(8, ge=1)
    rollout_gpus: int | None = Field(None, ge=1)
    """GPUs that only sample. null: sampling and training take turns on the same GPUs."""
    gpus_per_engine: int = Field(1, ge=1)
    """GPUs per SGLang engine."""
    tensor_parallel: int = Field(1, ge=1)
    max_tokens_per_gpu: int = Field(8192, ge=1)
    """Tokens in one forward and backward pass; bounds memory."""
    sglang_memory_fraction: float = Field(0.7, gt=0, lt=1)
    """Fraction of GPU memory for SGLang (weights and KV cache)."""
    retry_seconds: float = Field(900, gt=0)
    """How long to retry an engine that does not answer. Then the episode has failed."""
    request_timeout_seconds: float = Field(300, gt=0)
    """Time limit of one request, which is then sent again."""
    save_every: int = Field(20, ge=1)
    """Steps between checkpoints."""
    evaluate_every: int | None = Field(None, ge=1)
    """Steps between evaluations on the held-out tasks; null: no evaluations."""
    arguments: tuple[str, ...] = ()
    """Further arguments for SLIME, Megatron or SGLang (`--sglang-...`), as on the command line. They replace our
    arguments of the same names; `--no-X` removes our flag `--X`."""

    @model_validator(mode="after")
    def _fits(self) -> "SlimeConfig":
        if self.mode != "sync" and self.rollout_gpus is None:
            raise ValueError(f"slime.mode: {self.mode} needs slime.rollout_gpus")
        if self.request_timeout_seconds >= self.retry_seconds:
            raise ValueError("slime.request_timeout_seconds must be less than slime.retry_seconds")
        return self
