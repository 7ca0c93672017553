"""Parameters of the sandbox."""

from pydantic import Field

from slim_rl.core.parameters import Section


class SandboxConfig(Section):
    """Where programs run."""

    workers: int = Field(2, ge=1)
    """Programs that run at once, in each process."""
    url: str | None = Field(None, pattern=r"^https?://[^\s@]+$")
    """A server that speaks SandboxFusion's `/run_code`, such as http://sandbox:8080. null runs programs here, confined."""
