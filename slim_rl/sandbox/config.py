"""Parameters of the sandbox."""

from typing import Literal

from pydantic import Field, model_validator

from slim_rl.core.parameters import Section


class SandboxConfig(Section):
    """Where and how programs run."""

    kind: Literal["local", "http", "none"] = "local"
    """`local`: here, confined. `http`: a server that speaks SandboxFusion's `/run_code`. `none`: here, without any
    protection; for programs that you trust."""
    workers: int = Field(2, ge=1)
    """Programs that run at once, in each process."""
    memory_bytes: int = Field(256 * 2**20, ge=32 * 2**20)
    """Address space of a program, the interpreter's included."""
    output_bytes: int = Field(65536, ge=1)
    """A program that prints more is killed."""
    url: str | None = Field(None, pattern=r"^https?://[^\s@]+$")
    """Of the server, for `kind: http`: "http://sandbox:8080"."""

    @model_validator(mode="after")
    def _a_server_has_an_address(self) -> "SandboxConfig":
        if (self.kind == "http") != (self.url is not None):
            raise ValueError("sandbox.url is the address of the server of sandbox.kind: http; give both or neither")
        return self
