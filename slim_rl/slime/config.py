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
    """`sync`: sample, then train. `async`: sample the next step's episodes while this one trains. `fully_async`: never
    wait for the longest episode either; episodes go on through updates of the weights, so their beginnings come from
    older ones. The last two need `colocate: false`. For partners behind an API, which take most of a turn's time."""
    nodes: int = Field(1, ge=1)
    """Nodes that train."""
    gpus_per_node: int = Field(8, ge=1)
    colocate: bool = True
    """Sample on the GPUs that train, in turn."""
    rollout_gpus: int | None = Field(None, ge=1)
    """GPUs that only sample, without `colocate`."""
    gpus_per_engine: int = Field(1, ge=1)
    """GPUs per SGLang engine."""
    tensor_parallel: int = Field(1, ge=1)
    max_tokens_per_gpu: int = Field(8192, ge=1)
    """Tokens in one forward and backward pass; bounds memory."""
    sglang_memory_fraction: float = Field(0.7, gt=0, lt=1)
    """Fraction of GPU memory for SGLang (weights and KV cache)."""
    retry_seconds: float = Field(900, gt=0)
    """Retry an engine that does not answer for up to this long. Then the episode has failed."""
    request_timeout_seconds: float = Field(300, gt=0)
    """Time limit of one request. Then it is sent again."""
    save_every: int = Field(20, ge=1)
    """Steps between checkpoints."""
    evaluate_every: int | None = Field(None, ge=1)
    """Steps between evaluations on the held-out tasks; null for none."""
    wandb_project: str | None = None
    arguments: tuple[str, ...] = ()
    """Further arguments for SLIME, Megatron or SGLang (`--sglang-...`), as on the command line, in place of ours of
    the same names. One of our own flags, `--X`, is taken back by `--no-X`."""

    @model_validator(mode="after")
    def _somewhere_to_sample(self) -> "SlimeConfig":
        if self.colocate == (self.rollout_gpus is None):
            return self
        raise ValueError("slime.rollout_gpus belongs to slime.colocate: false; give both or neither")

    @model_validator(mode="after")
    def _async_samples_and_trains_at_once(self) -> "SlimeConfig":
        if self.mode != "sync" and self.colocate:
            raise ValueError(f"slime.mode: {self.mode} needs slime.colocate: false, and slime.rollout_gpus")
        if self.mode == "fully_async" and self.evaluate_every:
            raise ValueError("slime.mode: fully_async cannot evaluate in between; leave slime.evaluate_every out")
        return self

    @model_validator(mode="after")
    def _hung_requests_are_sent_again(self) -> "SlimeConfig":
        if self.request_timeout_seconds >= self.retry_seconds:
            raise ValueError("slime.request_timeout_seconds must be less than slime.retry_seconds")
        return self
