"""A model behind an OpenAI-compatible API: calls, retries and budget. It knows no games.

The retries of OpenAI's client are off: every attempt passes the limits, so they see every call, and a refusal slows
down all callers.
"""

import asyncio
import atexit
import hashlib
import json
import os
import random
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import aiohttp
import httpx2
import openai
from pydantic import BaseModel

from slim_rl.core.errors import PlayerFailed, UserError
from slim_rl.players.config import ServiceConfig
from slim_rl.players.failures import Failure, Failures
from slim_rl.players.ledger import Ledger
from slim_rl.players.limits import Call, Limits

OPENAI, _OPENAI_KEY = (ServiceConfig.model_fields[name].default for name in ("base_url", "key_variable"))
T = TypeVar("T")
ChatMessage = dict[str, str]

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.25, 30.0
_BROKEN = (openai.APIError, httpx2.HTTPError, aiohttp.ClientError, OSError, ValueError, RecursionError)
"""What a call raises that was cut off, timed out, or answered with something that is no reply."""


class Reply(NamedTuple):
    text: str
    cut: bool = False
    """Whether it reached the limit on its length."""


class _Details(BaseModel):
    cached_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message | None = None
    finish_reason: str | None = None


class _Completion(BaseModel):
    """The parts of a chat completion that are used here."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None


class ChatService:
    """One of `services`, shared by all its seats.

    It has a thread and an event loop of its own, so that calls from any loop share the limits.

    Raises:
        UserError: there is no key, the address is not valid, or the cost is limited but the price unknown.
    """

    def __init__(self, name: str, config: ServiceConfig, ledger: Ledger):
        self._name, self._config, self.ledger = name, config, ledger
        key = _read_key(name, config)
        self._failures = Failures(name, config, key)
        if config.max_cost_dollars is not None and ledger.price is None:
            raise UserError(
                f"services.{name}.max_cost_dollars is set, but slim_rl/players/prices.yaml has no price for "
                f"{config.model}; set services.{name}.price."
            )
        self._reserved: list[float] = []  # dollars, for each call under way
        self._sent: set[asyncio.Task[Reply | Failure]] = set()
        self._stopped = ""  # why no more calls are made
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"service {name}", daemon=True)
        self._thread.start()
        self._submit(self._connect(key)).result()
        atexit.register(self.close)

    def check(self) -> None:
        """Make the smallest call there is, so that a wrong key is reported before any work is done.

        Raises:
            UserError: the service cannot be used.
        """
        try:
            self._submit(self._reply([{"role": "user", "content": "Hello"}], 0, replay=False)).result()
        except PlayerFailed as error:
            raise UserError(
                f"{self._failures.where} does not work: {error}; try again later or check "
                f"services.{self._name}.base_url."
            ) from None

    async def reply(self, messages: Sequence[ChatMessage], seed: int) -> Reply:
        """The model's next message.

        If the caller is cancelled, a call under way goes on, and its reply is kept in the ledger. No call follows it.

        Raises:
            PlayerFailed: the service gave no reply after all retries.
            UserError: no call to it can succeed, or the budget is spent.
        """
        return await asyncio.wrap_future(self._submit(self._reply(list(messages), seed)))

    def status(self) -> str:
        """A progress-bar suffix."""
        totals = self.ledger.totals
        tokens = totals["prompt_tokens"] + totals["completion_tokens"]
        cost = f", ${totals['dollars']:.2f}" if self.ledger.price else ""
        return f"{totals['calls']} calls, {tokens / 1000:.0f}k tokens{cost}"

    def close(self) -> None:
        """Close connections and stop the thread. Happens automatically at exit.

        Waits for the replies of the calls under way, at most `timeout_seconds`, so that no run pays for them again.
        """
        atexit.unregister(self.close)
        with suppress(FutureTimeoutError):
            self._submit(self._finish()).result(timeout=self._config.timeout_seconds + 2)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=2)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _finish(self) -> None:
        self._stopped = self._stopped or f"The service {self._name} is closed."
        if self._sent:
            await asyncio.wait(self._sent)
        await self._client.close()

    async def _connect(self, key: str) -> None:
        config = self._config
        self._limits = Limits(config.max_requests_per_minute, config.max_tokens_per_minute, config.max_concurrent)
        connections = httpx2.Limits(
            max_connections=config.max_concurrent, max_keepalive_connections=config.max_concurrent
        )
        try:
            self._client = openai.AsyncOpenAI(
                api_key=key or "none",  # the client wants one
                base_url=config.base_url,
                max_retries=0,
                timeout=config.timeout_seconds,
                http_client=openai.DefaultAioHttpClient(limits=connections),
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise UserError(
                f"services.{self._name}.base_url is {config.base_url}, which is not an address: {error}."
            ) from None

    async def _reply(self, messages: list[ChatMessage], seed: int, replay: bool = True) -> Reply:
        config = self._config
        body = {
            "model": config.model,
            "messages": messages,
            "temperature": config.temperature,
            # OpenAI's newer models know only the first name, most other servers only the second.
            "max_completion_tokens" if config.base_url == OPENAI else "max_tokens": config.max_reply_tokens,
        }
        key = hashlib.sha256(json.dumps([config.base_url, body, seed]).encode()).hexdigest()
        if replay and (paid := self.ledger.replies.get(key)) is not None:
            self.ledger.add(replayed=1)
            return Reply(*paid)
        for attempt in range(config.max_retries + 1):
            outcome = await self._call({**body, "seed": (seed + attempt) % 2**31}, key)
            if isinstance(outcome, Reply):
                return outcome
            self._stopped = self._stopped or outcome.sentence
            if self._stopped:
                raise UserError(self._stopped)
            failed = PlayerFailed(f"{outcome.reason} (call {attempt + 1} of at most {config.max_retries + 1})")
            if not outcome.again:
                break
            if not outcome.crowded and attempt < config.max_retries:
                longest = min(_FIRST_WAIT_SECONDS * 2**attempt, _LONGEST_WAIT_SECONDS)
                await asyncio.sleep(random.uniform(0.5, 1.0) * longest)
        raise failed

    async def _call(self, body: dict[str, Any], key: str) -> Reply | Failure:
        """One request. Its reply goes to the ledger under `key`."""
        prompt_tokens = sum(len(message["content"]) // 3 + 8 for message in body["messages"])
        async with self._limits.call(prompt_tokens + self._config.max_reply_tokens) as call:
            reserved = await self._reserve(prompt_tokens)
            sent = asyncio.create_task(self._send(body, prompt_tokens, call, key))
            self._sent.add(sent)
            try:
                outcome = await asyncio.shield(sent)
            except asyncio.CancelledError:
                await asyncio.wait([sent])  # its reply may cost money, so the ledger must get it
                raise
            finally:
                self._sent.discard(sent)
                self._reserved.remove(reserved)
            if isinstance(outcome, Failure) and outcome.crowded:
                self._limits.pause(call, outcome.after_seconds)
            else:
                self._limits.succeeded(call)
        return outcome

    async def _send(self, body: dict[str, Any], prompt_tokens: int, call: Call, key: str) -> Reply | Failure:
        try:
            # With eight messages `chat.completions.create` takes 2.4 ms of a core, this 0.7 ms.
            async with asyncio.timeout(self._config.timeout_seconds):
                response = await self._client.post("/chat/completions", body=body, cast_to=httpx2.Response)
            completion = _Completion.model_validate(response.json())
        except openai.APIStatusError as error:
            self.ledger.add(calls=1, **{type(error).__name__: 1})
            return self._failures.refused(error)
        except _BROKEN as error:
            sent = not isinstance(error.__cause__, httpx2.ConnectError)
            cause: BaseException = error
            while isinstance(cause, openai.APIConnectionError | httpx2.HTTPError) and cause.__cause__:
                cause = cause.__cause__  # the client calls a dropped connection a time-out
            self._note_unseen(prompt_tokens if sent else 0, type(cause).__name__)
            return Failure(self._failures.reason(cause))
        return self._read(completion, call, key)

    async def _reserve(self, prompt_tokens: int) -> float:
        """Reserve the most that a call may cost, in dollars, until it has ended.

        Raises:
            UserError: no more calls are made, or the rest of the budget is too small for this one.
        """
        price, budget, totals = self.ledger.price, self._config.max_cost_dollars, self.ledger.totals
        dollars = price.dollars(prompt_tokens, 0, self._config.max_reply_tokens) if price and budget else 0.0
        while budget and totals["dollars"] + sum(self._reserved) + dollars > budget:
            if not self._reserved:
                self._stopped = self._stopped or (
                    f"services.{self._name}.max_cost_dollars ({budget:g}) is reached: ${totals['dollars']:.4f} in "
                    f"{totals['calls']} calls. Finished work is kept; raise it and run the same command again."
                )
                break
            await asyncio.sleep(0.02)  # calls under way may cost less than what is reserved for them
        if self._stopped:
            raise UserError(self._stopped)
        self._reserved.append(dollars)
        return dollars

    def _read(self, completion: _Completion, call: Call, key: str) -> Reply | Failure:
        """The reply in a completion. It is in the ledger, with its cost, before the caller gets it."""
        outcome = self._outcome(completion)
        bought = (key, outcome) if isinstance(outcome, Reply) else None
        if usage := completion.usage:
            cached = (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0
            self.ledger.add_call(usage.prompt_tokens, cached, usage.completion_tokens, bought)
            call.tokens = usage.prompt_tokens + usage.completion_tokens
        else:
            self.ledger.add(bought, calls=1, calls_without_usage=1)
        return outcome

    def _outcome(self, completion: _Completion) -> Reply | Failure:
        if not completion.choices or completion.choices[0].message is None:
            self.ledger.add(empty_replies=1)
            return Failure("EmptyReply: there is no choice in it")
        message, ended = completion.choices[0].message, completion.choices[0].finish_reason
        if message.refusal or ended == "content_filter" or not message.content:
            self.ledger.add(refused_replies=1)
            return Failure(f"NoReply: {self._failures.one_line(message.refusal or f'empty, {ended}')}")
        text = message.content.encode(errors="replace").decode()  # JSON may hold unpaired surrogates
        return Reply(text, cut=ended == "length")

    def _note_unseen(self, prompt_tokens: int, outcome: str) -> None:
        """Count a call whose end was not seen. If it was sent it may have to be paid, so its estimate counts."""
        if not prompt_tokens or not self.ledger.price:
            self.ledger.add(calls=1, **{outcome: 1})
        else:
            self.ledger.add_call(prompt_tokens, 0, self._config.max_reply_tokens)
            self.ledger.add(estimated_calls=1, **{outcome: 1})


def _read_key(name: str, config: ServiceConfig) -> str:
    """The service's key; "" for a server that needs none."""
    variable = config.key_variable
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not key and (config.base_url == OPENAI or variable != _OPENAI_KEY):
        raise UserError(f"services.{name} needs a key: set the environment variable {variable}.")
    if not all("!" <= letter <= "~" for letter in key):
        raise UserError(f"The environment variable {variable} holds a character that no key has; set it again.")
    return key
