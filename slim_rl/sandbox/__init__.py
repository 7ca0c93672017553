"""Runs untrusted Python programs.

    async with Sandbox() as sandbox:
        run = await sandbox.run("print(input())", stdin="hello", seconds=3.0)

docs/sandbox.md says what a program can do, docs/results/sandbox-2026-11-26.md how attacks on it ended.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Self

from pydantic import Field

from slim_rl.core.parameters import Section
from slim_rl.sandbox.http import run_on_server
from slim_rl.sandbox.local import Broken, Zygote, namespaces_work
from slim_rl.sandbox.run import Run

__all__ = ["Run", "Sandbox", "SandboxConfig"]

PURE_RUNS = 500
"""An interpreter of pure programs is replaced after as many, by one with another hash seed and other addresses."""


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
        self, config: SandboxConfig | None = None, namespaces: bool | None = None, interpreters: int | None = None
    ):
        config = config or SandboxConfig()
        self._url, self._calls = config.url, asyncio.Semaphore(config.workers)
        self._namespaces, self._pure = namespaces, interpreters is not None
        self._threads = ThreadPoolExecutor(config.workers, thread_name_prefix="sandbox")
        self._free: list[list[Zygote]] = [[] for _ in range(interpreters or 1)]

    async def run(self, source: str, stdin: str = "", seconds: float = 3.0, interpreter: int = 0) -> Run:
        """Run a Python program.

        Args:
            seconds: limit of its wall-clock time and of its processor time; waiting for a free worker is not counted.
            interpreter: which one; a server has one.

        Raises:
            UserError: programs cannot be confined on this machine.
        """
        if self._url:
            async with self._calls:
                return await run_on_server(self._url, source, stdin, seconds)
        loop, free = asyncio.get_running_loop(), self._free[interpreter]
        return await loop.run_in_executor(self._threads, self._run, source, stdin, seconds, free)

    def _run(self, source: str, stdin: str, seconds: float, free: list[Zygote]) -> Run:
        zygote: Zygote | None = None
        try:
            try:
                zygote = free.pop()
            except IndexError:
                namespaces = namespaces_work() if self._namespaces is None else self._namespaces
                zygote = Zygote(namespaces, self._pure)
            run = zygote.run(source, stdin, seconds)
        except (Broken, OSError) as error:  # our own process may have no file or process left
            if zygote is not None:
                zygote.close()
            return Run("failed", errors=str(error))
        if self._pure and zygote.runs >= PURE_RUNS:
            zygote.close()
        else:
            free.append(zygote)
        return run

    def close(self) -> None:
        self._threads.shutdown()
        for zygote in chain(*self._free):
            zygote.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()
