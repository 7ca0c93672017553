"""Parameters of the evaluation that all studies share."""

from typing import Annotated

from pydantic import Field, model_validator

from slim_rl.core.parameters import Section
from slim_rl.training.config import BenchmarkConfig


class EvaluateConfig(Section):
    """How checkpoints are played; what is played, each study says."""

    temperature: float = Field(1.0, ge=0)
    server: str | None = Field(None, pattern=r"\{model\}.*\{port\}|\{port\}.*\{model\}")
    """Command line of a server that speaks SGLang's HTTP interface, with {model} and {port} in it, to play the
    checkpoints with; without it the local engine does. For models that it cannot hold or does not know."""
    allow_failed: bool = False
    """Whether the stage succeeds without the episodes that failed in every try; the report counts them."""
    every_steps: int | None = Field(None, ge=1)
    """Training steps between two evaluations on `benchmarks`, which come first before training and last after it; null
    for none. With `train.backend: local`; with `slime` see `slime.evaluate_every`."""
    benchmarks: dict[Annotated[str, Field(pattern=r"^\w[\w.-]*$")], BenchmarkConfig] = Field(default_factory=dict)
    """By the name under which the curves show them: `mbpp_eval/pass_rate`. Each may have `parameters`, its game's, as in
    `games`."""

    @model_validator(mode="after")
    def _benchmarks_have_an_interval(self) -> "EvaluateConfig":
        if bool(self.benchmarks) != (self.every_steps is not None):
            raise ValueError("evaluate.every_steps is the interval of evaluate.benchmarks; give both or neither")
        return self
