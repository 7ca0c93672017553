"""Parameters of the players that are models."""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from slim_rl.core.parameters import Section


class Price(Section):
    """Dollars per million tokens."""

    prompt: float = Field(ge=0)
    cached_prompt: float = Field(ge=0)
    completion: float = Field(ge=0)

    def dollars(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        return (
            (prompt_tokens - cached_tokens) * self.prompt
            + cached_tokens * self.cached_prompt
            + completion_tokens * self.completion
        ) / 1e6


class ServiceConfig(Section):
    """A model behind an OpenAI-compatible API."""

    model: str = "gpt-4.1"
    base_url: str = Field("https://api.openai.com/v1", pattern=r"^https?://[^\s@]+$")
    key_variable: str | None = Field("OPENAI_API_KEY", pattern=r"^\w+$")
    """The environment variable with the service's key. Give each provider its own, or it gets OpenAI's key. null for
    a server that needs no key."""
    price: Price | None = None
    """null takes the price of slim_rl/players/prices.yaml, if the model is listed there."""
    temperature: float | None = Field(0.0, ge=0, le=2)
    """null for a model that takes none."""
    max_reply_tokens: int = Field(120, ge=1)
    """Maximum tokens per reply. A longer reply is requested again once."""
    max_requests_per_minute: int | None = Field(500, ge=1)
    """null for no limit. The defaults are what OpenAI's lowest paid tier allows for gpt-4.1."""
    max_tokens_per_minute: int | None = Field(30_000, ge=1)
    """null for no limit."""
    max_concurrent: int = Field(64, ge=1)
    """Calls under way at once."""
    timeout_seconds: float = Field(60.0, gt=0)
    """Time limit of one call; then it is retried."""
    max_retries: int = Field(6, ge=0)
    """Retries per turn; then the episode has failed. In an outage all calls pause up to `max_retries` + 2 times, a minute or
    two in all by default; then the run stops."""
    max_cost_dollars: float | None = Field(None, gt=0)
    """Budget of one run of a stage, interrupted parts included; then it stops and can be resumed. null for no limit.
    Needs a price."""

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            if not parts.hostname or parts.port == 0:
                raise ValueError("it names no host or no port")
        except ValueError as error:  # also a port out of range
            raise ValueError(f"base_url is {url}, which is not an address: {error}") from None
        return url


class ModelConfig(Section):
    """The model that is trained."""

    base: str = "tiny"
    """`tiny`, made from scratch by imitation; or a Hugging Face checkpoint with a chat template, by path or hub name; or
    a `.gguf` file, which is dequantised."""
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "auto"
    """What a checkpoint computes in, in the local backend; its weights are trained in fp32. auto: bf16 on a GPU that has
    it, else fp16; on a processor fp32 or bf16, whichever a short measurement finds faster. The tiny model always computes
    in fp32."""
    layers: int = Field(4, ge=1)
    """Layers of the tiny model."""
    hidden_size: int = Field(128, ge=32)
    """Width of the tiny model."""
    initializer_range: float = Field(0.05, gt=0)
    """Standard deviation of the tiny model's first weights."""
    thinking: bool = False
    """Whether the policy may think before it speaks. Its thoughts are trained, and no other seat sees them. Without it
    the turns of Qwen3 begin with an empty thought; to a model that was not made to think it makes no difference."""
    context_tokens: int = Field(512, ge=64)
    """The tiny model's context, and the longest dialogue with `train.backend: slime` or `tinker`; with `local` any other
    checkpoint brings its own."""
    turn_tokens: int = Field(32, ge=1)
    """Maximum tokens per turn."""
    system_prompt: str | None = None
    """The policy's system prompt. `{game}` stands for the game's own, `{tools}` for the JSON schemas of its tools, a line
    each; a template with `{tools}` also says how to call them. null: the game's own, else that of the chat template, and
    the chat template's list of tools."""
    chat_template: str | None = Field(None, min_length=1)
    """A template, in Jinja as transformers reads it, in place of the checkpoint's own: one that has tools, for instance.
    The local backend saves the trained checkpoint with it."""
    tool_tokens: int = Field(1024, ge=1)
    """Maximum tokens of the result of one tool call. A longer one is cut, and the policy is told."""

    @property
    def computes_in(self) -> str:
        """`precision`, but the tiny model's numbers are the same on every machine."""
        return "fp32" if self.base == "tiny" else self.precision

    @model_validator(mode="after")
    def _has_a_template_to_replace(self) -> "ModelConfig":
        if self.base == "tiny" and self.precision in ("bf16", "fp16"):
            raise ValueError(f"model.precision {self.precision} is for checkpoints; the tiny model computes in fp32")
        if self.chat_template and self.base == "tiny":
            raise ValueError("model.chat_template replaces that of a checkpoint; model.base tiny has one of its own")
        return self
