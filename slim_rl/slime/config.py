"""Parameters of SLIME."""

from pydantic import Field, model_validator

from slim_rl.core.parameters import Section


class SlimeConfig(Section):
    """How SLIME trains (`train.backend: slime`): which GPUs do what. What is trained stands in `train`."""

    directory: str | None = None
    """SLIME's source (github THUDM/slime, v0.3.1); Megatron-LM's is looked for beside it."""
    python: str = "python3"
    """The Python that has what SLIME needs, Ray too; in SLIME's container image /usr/bin/python3."""
    ray_address: str | None = Field(None, pattern=r"^https?://")
    """Where an existing cluster takes jobs (http://HEAD:8265); without it, and without RAY_API_SERVER_ADDRESS
    in the environment, a cluster of this machine is started for the run."""
    nodes: int = Field(1, ge=1)
    """Nodes that train."""
    gpus_per_node: int = Field(8, ge=1)
    colocate: bool = True
    """Sample on the GPUs that train, by turns."""
    rollout_gpus: int | None = Field(None, ge=1)
    """GPUs that sample only, if not colocated."""
    gpus_per_engine: int = Field(1, ge=1)
    """GPUs that one SGLang engine spans."""
    external_engines: tuple[str, ...] = ()
    """HOST:PORT of SGLang engines that run already, in place of SLIME's own."""
    tensor_parallel: int = Field(1, ge=1)
    context_parallel: int = Field(1, ge=1)
    max_tokens_per_gpu: int = Field(8192, ge=1)
    """In one forward and backward pass; bounds memory."""
    sglang_memory_fraction: float = Field(0.7, gt=0, lt=1)
    """Of a GPU, for SGLang's weights and cache."""
    retry_seconds: float = Field(900, gt=0)
    """An engine that does not answer is tried again for so long; then the episode has failed."""
    request_timeout_seconds: float = Field(300, gt=0)
    """A request without an answer counts as hung after so long, and is sent again."""
    partial_rollout: bool = False
    """Keep the dialogues that are under way when a rollout is full, and go on with them in the next one."""
    save_every: int = Field(20, ge=1)
    """Steps between checkpoints."""
    evaluate_every: int | None = Field(None, ge=1)
    """Steps between rollouts on the held-out games; none without it."""
    wandb_project: str | None = None
    arguments: tuple[str, ...] = ()
    """Further arguments for SLIME, Megatron or SGLang (`--sglang-...`), as on the command line; the last word."""

    @model_validator(mode="after")
    def _somewhere_to_sample(self) -> "SlimeConfig":
        if self.external_engines or self.colocate == (self.rollout_gpus is None):
            return self
        raise ValueError("give rollout_gpus if colocate is false, and only then")

    @model_validator(mode="after")
    def _hung_requests_are_sent_again(self) -> "SlimeConfig":
        if self.request_timeout_seconds >= self.retry_seconds:
            raise ValueError("request_timeout_seconds must be less than retry_seconds")
        return self
