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
    """A pool that runs programs, `config.workers` at once.

    Args:
        hash_seed: determines the order of sets in every program. A server ignores it.
        namespaces: whether to use bubblewrap's namespaces; None where they work.
    """

    def __init__(self, config: SandboxConfig | None = None, hash_seed: int = 1, namespaces: bool | None = None):
        config = config or SandboxConfig()
        self._runner = HttpRunner(config) if config.url else LocalRunner(config.workers, hash_seed, namespaces)

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
