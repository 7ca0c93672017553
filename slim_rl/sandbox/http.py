"""Runs programs on a server that speaks SandboxFusion's `/run_code`.

Source: github.com/bytedance/SandboxFusion, `sandbox/server/sandbox_api.py`. Whether the server confines a program is
the server's affair.
"""

import asyncio
import re
from typing import Any

import aiohttp

from slim_rl.sandbox.config import SandboxConfig
from slim_rl.sandbox.run import Run

GRACE_SECONDS = 30.0
"""How much longer than the program's limit the server may take to answer."""
_SYNTAX = re.compile(r"(?!Traceback)[\s\S]*^(SyntaxError|IndentationError|TabError): ", re.MULTILINE)


class HttpRunner:
    """A server at `config.url`, with at most `config.workers` calls at once."""

    def __init__(self, config: SandboxConfig):
        self._config = config
        self._free: tuple[object, asyncio.Semaphore] | None = None

    async def run(self, source: str, stdin: str, seconds: float) -> Run:
        """See `Sandbox.run`."""
        body = {
            "code": source.encode(errors="replace").decode(),
            "language": "python",
            "stdin": stdin.encode(errors="replace").decode(),
            "run_timeout": seconds,
            "memory_limit_MB": self._config.memory_bytes >> 20,
        }
        try:
            async with self._semaphore(), asyncio.timeout(seconds + GRACE_SECONDS):
                return self._read(await self._post(body))
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, AttributeError) as error:
            return Run("failed", errors=f"{type(error).__name__}: {error}")

    async def _post(self, body: dict[str, Any]) -> Any:
        url = f"{str(self._config.url).rstrip('/')}/run_code"
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.post(url, json=body) as answer:
            return await answer.json()

    def close(self) -> None:
        """Nothing is held between calls."""

    def _semaphore(self) -> asyncio.Semaphore:
        """That of the running event loop; each step of training has its own."""
        loop = asyncio.get_running_loop()
        if self._free is None or self._free[0] is not loop:
            self._free = loop, asyncio.Semaphore(self._config.workers)
        return self._free[1]

    def _read(self, answer: dict[str, Any]) -> Run:
        result = answer["run_result"]
        if answer["status"] == "SandboxError" or result is None:
            return Run("failed", errors=str(answer.get("message", "SandboxError")))
        output, errors = result.get("stdout") or "", result.get("stderr") or ""
        seconds = float(result.get("execution_time") or 0.0)
        if result["status"] == "TimeLimitExceeded":
            return Run("timeout", output, seconds, errors)
        if len(output.encode(errors="replace")) > self._config.output_bytes:
            return Run("killed", output[: self._config.output_bytes], seconds, errors)
        code = result["return_code"]
        if code == 0:
            return Run("ok", output, seconds, errors)
        if code < 0:
            return Run("killed", output, seconds, errors)
        return Run("syntax" if _SYNTAX.match(errors) else "error", output, seconds, errors)
