"""Parameters of the evaluation that all studies share."""

from pydantic import Field

from slim_rl.core.parameters import Section


class EvaluateConfig(Section):
    """How checkpoints are played; what is played, each study says."""

    temperature: float = Field(1.0, ge=0)
    server: str | None = Field(None, pattern=r"\{model\}.*\{port\}|\{port\}.*\{model\}")
    """Command line of a server that speaks SGLang's HTTP interface, with {model} and {port} in it, to play the
    checkpoints with; without it the local engine does. For models that it cannot hold or does not know."""
