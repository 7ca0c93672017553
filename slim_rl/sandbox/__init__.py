"""Runs untrusted Python programs.

    async with Sandbox() as sandbox:
        run = await sandbox.run("print(input())", stdin="hello", seconds=3.0)

docs/sandbox.md says what a program can do, docs/results/sandbox-2026-11-26.md how attacks on it ended.
"""

from typing import Self

from pydantic import Field

from slim_rl.core.parameters import Section
from slim_rl.sandbox.http import HttpRunner
from slim_rl.sandbox.local import LocalRunner
from slim_rl.sandbox.run import Run

__all__ = ["Run", "Sandbox", "SandboxConfig"]


class SandboxConfig(Section):
    """Where programs run."""

    workers: int = Field(2, ge=1)
    """Programs that run at once, in each process."""
    url: str | None = Field(None, pattern=r"^https?://[^\s@]+$")
    """A server that speaks SandboxFusion's `/run_code`, such as http://sandbox:8080. null runs programs here, confined."""


class Sandbox:
    """A pool that runs programs, `config.workers` at once.

    Args:
        namespaces: whether to use bubblewrap's namespaces; None where they work.
        interpreters: to choose from for a run, each with a hash seed, addresses and clocks of its own, in which programs
            are pure: no id, file, thread, timer or randomness of the kernel's tells them which run this is. The default
            is one in which they are not, and in which sets have the same order in every run.
    """

    def __init__(
        self,
        config: SandboxConfig | None = None,
        namespaces: bool | None = None,
        interpreters: int | None = None,
    ):
        config = config or SandboxConfig()
        local = LocalRunner(config.workers, namespaces, interpreters)
        self._runner = HttpRunner(config.url, config.workers) if config.url else local

    async def run(self, source: str, stdin: str = "", seconds: float = 3.0, interpreter: int = 0) -> Run:
        """Run a Python program.

        Args:
            seconds: limit of its wall-clock time and of its processor time; waiting for a free worker is not counted.
            interpreter: which one; a server has one.

        Raises:
            UserError: programs cannot be confined on this machine.
        """
        return await self._runner.run(source, stdin, seconds, interpreter)

    def close(self) -> None:
        self._runner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()
