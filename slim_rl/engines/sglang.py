"""An engine behind SGLang's HTTP interface: one server, or a router in front of many."""

import math
import shlex
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, get_args

import aiohttp

from slim_rl.core.errors import UserError, finite
from slim_rl.engines.engine import EngineFailed, FinishReason, Generation, Sampling
from slim_rl.runtime.process import end, wait_until
from slim_rl.runtime.retry import retry

_ROUNDING = 0.01
"""By so much a log-prob may be above 0."""
_TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}


class _Transient(Exception):
    """The server is overloaded, or its answer was cut."""


_TRANSIENT = (_Transient, aiohttp.ClientConnectionError, TimeoutError)


class SGLangEngine:
    """Samples by `POST {url}/generate`, token ids in, token ids and log-probs out. Belongs to one event loop.

    Args:
        url: of the server or router, without a path.
        retry_seconds: retry transient failures (no connection, 429, 5xx, a request that hangs) for up to this long.
        timeout_seconds: a request that takes longer counts as hung.
        vocab_size: of the model, so that another model's answer is noticed; None where it is not known.
    """

    def __init__(
        self,
        url: str,
        max_context_tokens: int,
        retry_seconds: float = 300.0,
        timeout_seconds: float = 600.0,
        vocab_size: int | None = None,
    ):
        self.max_context_tokens, self._vocab_size = max_context_tokens, vocab_size
        self.answered = -math.inf
        """When a request was last answered, by the monotonic clock, seconds."""
        self._url = f"{url.rstrip('/')}/generate"
        self._retry_seconds = retry_seconds
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._client: aiohttp.ClientSession | None = None

    async def generate(self, input_ids: Sequence[int], sampling: Sampling) -> Generation:
        return generation(await self.request(input_ids, sampling), self._vocab_size)

    async def request(
        self,
        input_ids: Sequence[int],
        sampling: Sampling,
        sampling_params: Mapping[str, Any] | None = None,
        given_up: Callable[[], bool] = lambda: False,
        more: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The server's answer as it came.

        Args:
            sampling_params: extra sampling parameters, by SGLang's names.
            given_up: whether the answer is no longer needed, so that it is not retried.
            more: other fields of the request, by SGLang's names.

        Raises:
            EngineFailed
        """
        forbidden = sampling.forbidden_token_ids
        payload = {
            **(more or {}),
            "input_ids": list(input_ids),
            "return_logprob": True,
            "sampling_params": {
                "skip_special_tokens": False,
                "spaces_between_special_tokens": False,
                "no_stop_trim": True,
                **(sampling_params or {}),
                "max_new_tokens": sampling.max_new_tokens,
                "temperature": sampling.temperature,
                "stop_token_ids": list(sampling.stop_token_ids),
                "sampling_seed": sampling.seed & 0x7FFFFFFF,
                **({"logit_bias": {str(token): -100 for token in forbidden}} if forbidden else {}),
            },
        }
        # A router with consistent hashing sends a dialogue to the server that has cached its beginning.
        headers = {"X-SMG-Routing-Key": sampling.session} if sampling.session else None
        try:
            return await retry(
                lambda: self._post(payload, headers),
                lambda error: isinstance(error, _TRANSIENT) and not given_up(),
                seconds=self._retry_seconds,
                longest_seconds=min(10.0, self._retry_seconds / 10),
            )
        except _TRANSIENT as error:
            raise EngineFailed(
                f"{self._url} was tried for {self._retry_seconds:.0f} s; at last: {type(error).__name__} {error}"
            ) from error

    async def _post(self, payload: dict[str, Any], headers: dict[str, str] | None) -> dict[str, Any]:
        if self._client is None:
            # The servers queue requests themselves. A proxy of the environment is not meant for them.
            connector = aiohttp.TCPConnector(limit=0)
            self._client = aiohttp.ClientSession(connector=connector, timeout=self._timeout, trust_env=False)
        async with self._client.post(self._url, json=payload, headers=headers) as response:
            try:
                if response.status == 200:
                    answer = await response.json()
                    self.answered = time.monotonic()
                    return answer
                problem = f"{response.status}: {(await response.text())[:500]}"
            except (ValueError, RecursionError, aiohttp.ClientError) as error:
                raise _Transient(f"an unreadable answer: {error}") from error
            if response.status in _TRANSIENT_STATUSES:
                raise _Transient(problem)
            raise EngineFailed(f"{self._url} answered {problem}")

    def release(self, session: str) -> None:
        """No-op: SGLang evicts its own cache."""

    async def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


@contextmanager
def serving(command: str, checkpoint: Path, start_seconds: float = 1800.0) -> Iterator[str]:
    """Run a server with the weights of `checkpoint`, and end it afterwards. Yields its address.

    Args:
        command: its command line, with {model} and {port} as placeholders, for example
            `python3 -m sglang.launch_server --model-path {model} --port {port}`.

    Raises:
        UserError: the command cannot be started, or the server ended or was not ready in time.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    try:
        words = [word.format(model=checkpoint, port=port) for word in shlex.split(command)]
        process = subprocess.Popen(words, start_new_session=True)
    except (OSError, ValueError, LookupError) as error:
        raise UserError(f"The server {command!r} cannot be started: {error}.") from None
    try:
        wait_until(lambda: process.poll() is not None or _healthy(url), start_seconds, every_seconds=0.5)
        if process.poll() is not None or not _healthy(url):
            raise UserError(f"The server {shlex.join(words)} did not come up; its last output says why.")
        yield url
    finally:
        end(process, grace_seconds=60.0)


def _healthy(url: str) -> bool:
    try:
        # A proxy of the environment is not meant for this machine.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{url}/health", timeout=5):
            return True
    except OSError:
        return False


def generation(answer: Any, vocab_size: int | None = None) -> Generation:
    """The tokens in an answer of SGLang.

    Args:
        vocab_size: of the model; None where it is not known here.

    Raises:
        EngineFailed: tokens or log-probs are missing, or one cannot be of such a model.
    """
    try:
        sampled = answer["meta_info"].get("output_token_logprobs") or []
        reason = answer["meta_info"]["finish_reason"]["type"]
        pairs = [(token, logprob) for logprob, token, *_ in sampled]
        if reason not in get_args(FinishReason):
            raise ValueError(f"its finish_reason is {reason!r}")
        for token, logprob in pairs:
            if type(token) is not int or not 0 <= token < (vocab_size or 2**31):
                raise ValueError(
                    f"{token!r} is no token of a vocabulary of {vocab_size or 'any'} tokens; is it another model's?"
                )
            if isinstance(logprob, bool) or finite(logprob) > _ROUNDING:
                raise ValueError(f"{logprob} is no log-prob")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise EngineFailed(f"the answer is not SGLang's: {type(error).__name__} {str(error)[:300]}") from error
    if not sampled and reason != "abort":
        raise EngineFailed("the answer has no output_token_logprobs; does a proxy strip meta_info?")
    return Generation([token for token, _ in pairs], [logprob for _, logprob in pairs], reason)
