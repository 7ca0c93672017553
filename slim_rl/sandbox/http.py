"""Runs programs on a server that speaks SandboxFusion's `/run_code`.

Source: github.com/bytedance/SandboxFusion, `sandbox/server/sandbox_api.py`. Whether the server confines a program is
the server's affair.
"""

import asyncio
import json
import re

import aiohttp
from pydantic import BaseModel

from slim_rl.sandbox.run import MEMORY_BYTES, OUTPUT_BYTES, Run

GRACE_SECONDS = 30.0
"""How much longer than the program's limit the server may take to answer."""
_SYNTAX = re.compile(r"(?!Traceback)[\s\S]*^(SyntaxError|IndentationError|TabError): ", re.MULTILINE)


class _Result(BaseModel):
    status: str
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None
    execution_time: float | None = None


class _Answer(BaseModel):
    status: str
    message: str | None = None
    run_result: _Result | None = None


class HttpRunner:
    """A server at `url`, with at most `workers` calls at once."""

    def __init__(self, url: str, workers: int):
        self._url = f"{url.rstrip('/')}/run_code"
        self._free = asyncio.Semaphore(workers)

    async def run(self, source: str, stdin: str, seconds: float, interpreter: int = 0) -> Run:
        """See `Sandbox.run`."""
        body = {
            "code": source.encode(errors="replace").decode(),
            "language": "python",
            "stdin": stdin.encode(errors="replace").decode(),
            "run_timeout": seconds,
            "memory_limit_MB": MEMORY_BYTES >> 20,
        }
        time_limit = asyncio.timeout(seconds + GRACE_SECONDS)
        session = aiohttp.ClientSession(raise_for_status=True)
        try:
            async with self._free, time_limit, session, session.post(self._url, json=body) as reply:
                text = await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            return Run("failed", errors=f"{type(error).__name__}: {error}")
        try:
            answer = _Answer.model_validate(json.loads(text))
        except ValueError as error:
            return Run("failed", errors=f"not an answer of /run_code: {error}")
        return _run(answer)

    def close(self) -> None:
        """Nothing is held between calls."""


def _run(answer: _Answer) -> Run:
    result = answer.run_result
    if answer.status == "SandboxError" or result is None:
        return Run("failed", errors=answer.message or answer.status)
    output, errors = ((text or "").encode(errors="replace").decode() for text in (result.stdout, result.stderr))
    seconds = result.execution_time or 0.0
    if result.status == "TimeLimitExceeded":
        return Run("timeout", output, seconds, errors)
    if result.return_code is None:
        return Run("failed", errors=f"no return code: {answer.message or result.status}")
    if len(output.encode()) > OUTPUT_BYTES:
        return Run("killed", output[:OUTPUT_BYTES], seconds, errors)
    if result.return_code == 0:
        return Run("ok", output, seconds, errors)
    if result.return_code < 0:
        return Run("killed", output, seconds, errors)
    return Run("syntax" if _SYNTAX.match(errors) else "error", output, seconds, errors)
