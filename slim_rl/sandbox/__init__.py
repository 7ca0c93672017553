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
        hash_seed: determines the order of sets in every program, unless it is pure. A server ignores it.
        namespaces: whether to use bubblewrap's namespaces; None where they work.
        interpreters: to choose from for a run, each with a hash seed, addresses and clocks of its own, in which programs
            are pure: no id, file, thread, timer or randomness of the kernel's tells them which run this is. The default
            is one in which they are not.
    """

    def __init__(
        self,
        config: SandboxConfig | None = None,
        hash_seed: int = 1,
        namespaces: bool | None = None,
        interpreters: int | None = None,
    ):
        config = config or SandboxConfig()
        self._runner = (
            HttpRunner(config) if config.url else LocalRunner(config.workers, hash_seed, namespaces, interpreters)
        )

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
