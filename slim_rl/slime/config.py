"""Parameters of SLIME."""

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
    """Further arguments for SLIME, Megatron or SGLang (`--sglang-...`), as on the command line. They come last."""

    @model_validator(mode="after")
    def _somewhere_to_sample(self) -> "SlimeConfig":
        if self.colocate == (self.rollout_gpus is None):
            return self
        raise ValueError("slime.rollout_gpus belongs to slime.colocate: false; give both or neither")

    @model_validator(mode="after")
    def _hung_requests_are_sent_again(self) -> "SlimeConfig":
        if self.request_timeout_seconds >= self.retry_seconds:
            raise ValueError("slime.request_timeout_seconds must be less than slime.retry_seconds")
        return self
