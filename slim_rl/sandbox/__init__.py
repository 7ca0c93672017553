"""Runs untrusted Python programs.

    async with Sandbox() as sandbox:
        run = await sandbox.run("print(input())", stdin="hello", seconds=3.0)

docs/sandbox.md says what a program can do, and how each attack on it ends.
"""

from typing import Self

from slim_rl.sandbox.config import SandboxConfig
from slim_rl.sandbox.http import HttpRunner
from slim_rl.sandbox.local import LocalRunner
from slim_rl.sandbox.run import Run

__all__ = ["Run", "Sandbox", "SandboxConfig"]


class Sandbox:
    """A pool that runs programs, `config.workers` at once. It can be used from several event loops.

    Args:
        world: programs of another world see another hash seed, address layout, calendar clock and process number; those
            of one world see the same hash seed every time.
    """

    def __init__(self, config: SandboxConfig | None = None, world: int = 0):
        config = config or SandboxConfig()
        self._runner = HttpRunner(config) if config.kind == "http" else LocalRunner(config, world)

    async def run(self, source: str, stdin: str = "", seconds: float = 3.0) -> Run:
        """Run a Python program.

        Args:
            seconds: limit of its wall-clock time and of its processor time; waiting for a free worker is not counted.

        Raises:
            UserError: programs cannot be confined on this machine.
        """
        return await self._runner.run(source, stdin, seconds)

    def close(self) -> None:
        self._runner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()
