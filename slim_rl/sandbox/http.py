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


async def run_on_server(url: str, source: str, stdin: str, seconds: float) -> Run:
    """See `Sandbox.run`."""
    body = {
        "code": _clean(source),
        "language": "python",
        "stdin": _clean(stdin),
        "run_timeout": seconds,
        "memory_limit_MB": MEMORY_BYTES >> 20,
    }
    time_limit, session = asyncio.timeout(seconds + GRACE_SECONDS), aiohttp.ClientSession(raise_for_status=True)
    try:
        async with time_limit, session, session.post(f"{url.rstrip('/')}/run_code", json=body) as reply:
            answer = _Answer.model_validate(json.loads(await reply.read()))
    except (aiohttp.ClientError, TimeoutError) as error:
        return Run("failed", errors=f"{type(error).__name__}: {error}")
    except ValueError as error:
        return Run("failed", errors=f"not an answer of /run_code: {error}")
    result = answer.run_result
    if answer.status == "SandboxError" or result is None:
        return Run("failed", errors=answer.message or answer.status)
    output, errors, code = _clean(result.stdout or ""), _clean(result.stderr or ""), result.return_code
    taken = result.execution_time or 0.0
    if result.status == "TimeLimitExceeded":
        return Run("timeout", output, taken, errors)
    if code is None:
        return Run("failed", errors=f"no return code: {answer.message or result.status}")
    if code < 0 or len(output.encode()) > OUTPUT_BYTES:
        return Run("killed", output[:OUTPUT_BYTES], taken, errors)
    if code == 0:
        return Run("ok", output, taken, errors)
    return Run("syntax" if _SYNTAX.match(errors) else "error", output, taken, errors)


def _clean(text: str) -> str:
    """Text with "?" for what UTF-8 cannot hold."""
    return text.encode(errors="replace").decode()
