"""A seat behind any OpenAI-compatible API. Knows text and failures, nothing of a game's rules.

The client's own retries are off: each attempt passes the limits, so that they see every call, and what the
service refuses slows everybody down.
"""

import asyncio
import atexit
import gc
import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple, TypeVar

import aiohttp
import httpx2
import openai
from diskcache import Cache
from pydantic import BaseModel

from slim_rl.config import PartnerConfig
from slim_rl.errors import UserError
from slim_rl.players.ledger import Ledger, price_of
from slim_rl.players.limits import Call, Limits
from slim_rl.players.player import PlayerFailed

KEY = "OPENAI_API_KEY"
OPENAI = PartnerConfig.model_fields["base_url"].default
T = TypeVar("T")
Message = dict[str, str]

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.25, 30.0
_PATIENCE_SECONDS = 600.0  # a service that asks for a longer pause than this stops the run
_BROKEN = (openai.APIError, httpx2.HTTPError, aiohttp.ClientError, OSError, ValueError)
"""What comes of a call that was cut off, timed out, or answered with something that is no reply."""
_NO_QUOTA = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
_ONE_DIALOGUE = {"context_length_exceeded", "content_filter", "content_policy_violation"}


class Reply(NamedTuple):
    text: str
    cut: bool = False
    """Whether it was ended because it was longer than allowed."""


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
    """What is used of a chat completion; to make OpenAI's own class takes 0.2 ms more."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None


class _Failure(NamedTuple):
    """Why a call brought no reply. Not an exception: OpenAI's hold the request, and with it the key."""

    reason: str
    """The error's class and message."""
    sentence: str = ""
    """What to tell the user, if only he can mend it; then the run stops."""
    again: bool = True
    """Whether the same call may come out better."""
    crowded: bool = False
    """Whether everybody should wait."""
    after_seconds: float | None = None
    """How long, if the service said so."""


class ChatService:
    """A model behind an API, shared by every seat that it takes.

    It has a thread and an event loop of its own: calls from any loop share one limit, and a policy that
    computes holds none of them up. Dialogues are best held on that loop, too: see `run`.

    Args:
        ledger: where calls and their cost are noted.
        cache: a folder from which calls that were made before are answered; None asks every time.

    Raises:
        UserError: there is no key, or no price for a model whose cost is bounded.
    """

    def __init__(self, config: PartnerConfig, ledger: Ledger, cache: Path | None = None):
        self._config, self.ledger = config, ledger
        self._key = _read_key(config)
        self._cache = Cache(str(cache)) if cache is not None else None
        if config.max_cost_dollars is not None and ledger.price is None:
            raise UserError(
                f"partner.max_cost_dollars is set, but conf/prices.yaml has no price for {config.model}; add it there."
            )
        self._reserved: list[float] = []  # dollars, for each call under way
        self._stopped = ""  # why no more calls are made
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chat", daemon=True)
        self._thread.start()
        self._submit(self._connect()).result()
        # A call makes thousands of objects, so the collector runs often: not through all libraries each time.
        gc.collect()
        gc.freeze()
        atexit.register(self.close)

    def check(self) -> None:
        """Make the smallest call there is, so that a wrong key is told before any work is done.

        Raises:
            UserError: the service cannot be used.
        """
        try:
            self._submit(self._reply([{"role": "user", "content": "Say [accept]."}], 0)).result()
        except PlayerFailed as error:
            raise UserError(
                f"The partner's service at {self._config.base_url} does not work: {error}; try again later or check "
                "partner.base_url."
            ) from None

    async def reply(self, messages: Sequence[Message], seed: int) -> Reply:
        """What the model says next.

        Raises:
            PlayerFailed: the service gave no reply, however often it was asked.
            UserError: no call to it can succeed, or the money is spent.
        """
        work = self._reply(list(messages), seed)
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(self._submit(work))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """`asyncio.run` on the service's own loop: no turn in it has to go from thread to thread and back."""
        ended = threading.Event()

        async def whole() -> T:
            try:
                return await work
            finally:
                ended.set()

        future = self._submit(whole())
        try:
            return future.result()
        except BaseException:
            future.cancel()  # if it was interrupted here, and not by an error there
            ended.wait(timeout=10)
            raise

    def status(self) -> str:
        """For a progress bar: what was spent."""
        totals = self.ledger.totals
        tokens = totals["prompt_tokens"] + totals["completion_tokens"]
        cost = f", ${totals['dollars']:.2f}" if self.ledger.price else ""
        return f"{totals['calls']} calls, {tokens / 1000:.0f}k tokens{cost}"

    def bill(self) -> dict[str, Any]:
        """The model and the ledger's totals by name; no `dollars` where the price is not known."""
        totals = {name: round(number, 6) for name, number in self.ledger.totals.items()}
        if self.ledger.price is None:
            totals.pop("dollars", None)
        return {"model": self._config.model, **totals}

    def close(self) -> None:
        """To be called once nobody waits for a reply; a process that ends does it by itself."""
        atexit.unregister(self.close)
        with suppress(FutureTimeoutError):
            self._submit(self._client.close()).result(timeout=2)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=2)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _connect(self) -> None:
        config = self._config
        self._limits = Limits(
            config.max_requests_per_minute, config.max_tokens_per_minute, config.max_concurrent
        )
        connections = httpx2.Limits(
            max_connections=config.max_concurrent, max_keepalive_connections=config.max_concurrent
        )
        self._client = openai.AsyncOpenAI(
            api_key=self._key,
            base_url=config.base_url,
            max_retries=0,
            timeout=config.timeout_seconds,
            http_client=openai.DefaultAioHttpClient(limits=connections),
        )

    async def _reply(self, messages: list[Message], seed: int) -> Reply:
        config = self._config
        body = {
            "model": config.model,
            "messages": messages,
            "temperature": config.temperature,
            # OpenAI's newer models know only the first name, most other servers only the second.
            "max_completion_tokens" if config.base_url == OPENAI else "max_tokens": config.max_reply_tokens,
        }
        name = hashlib.sha256(json.dumps([config.base_url, body, seed]).encode()).hexdigest()
        if (paid := self.ledger.replies.get(name)) is not None:
            self.ledger.add(replayed=1)
            return Reply(*paid)
        if self._cache is not None and (kept := self._cache.get(name)) is not None:
            self.ledger.add(replayed=1)
            return Reply(*json.loads(kept))
        for attempt in range(config.max_retries + 1):
            outcome = await self._call({**body, "seed": (seed + attempt) % 2**31}, name)
            if isinstance(outcome, Reply):
                if self._cache is not None:
                    self._cache.set(name, json.dumps(outcome))
                return outcome
            self._stopped = self._stopped or outcome.sentence
            if self._stopped:
                raise UserError(self._stopped)
            if not outcome.again:
                break
            if not outcome.crowded and attempt < config.max_retries:
                longest = min(_FIRST_WAIT_SECONDS * 2**attempt, _LONGEST_WAIT_SECONDS)
                await asyncio.sleep(random.uniform(0.5, 1.0) * longest)
        raise PlayerFailed(f"{outcome.reason} (call {attempt + 1} of at most {config.max_retries + 1})")

    async def _call(self, body: dict[str, Any], name: str) -> Reply | _Failure:
        """One request, and its line in the ledger, where a reply has this name."""
        reply_tokens = self._config.max_reply_tokens
        prompt_tokens = sum(len(message["content"]) // 3 + 8 for message in body["messages"])
        async with self._limits.call(prompt_tokens + reply_tokens) as call:
            reserved = await self._reserve(prompt_tokens)
            try:
                # A `create` spends more time on looking through the messages' types than on all the rest.
                async with asyncio.timeout(self._config.timeout_seconds):
                    response = await self._client.post(
                        "/chat/completions", body=body, cast_to=httpx2.Response
                    )
                completion = _Completion.model_validate(response.json())
            except openai.APIStatusError as error:
                outcome = self._refusal(error)
                self.ledger.add(calls=1, **{type(error).__name__: 1})
            except _BROKEN as error:
                sent = not isinstance(error.__cause__, httpx2.ConnectError)
                while isinstance(error, openai.APIConnectionError | httpx2.HTTPError) and error.__cause__:
                    error = error.__cause__  # the client calls a dropped connection a time-out
                outcome = _Failure(self._told(error))
                self._note_unseen(prompt_tokens if sent else 0, type(error).__name__)
            except asyncio.CancelledError:
                self._note_unseen(prompt_tokens, "Cancelled")
                raise
            else:
                outcome = self._read(completion, call, name)
            finally:
                self._reserved.remove(reserved)
            if isinstance(outcome, _Failure) and outcome.crowded:
                self._limits.pause(call, outcome.after_seconds)
            else:
                self._limits.succeeded(call)
        return outcome

    async def _reserve(self, prompt_tokens: int) -> float:
        """Set the most that a call may cost aside until it has ended, dollars.

        Raises:
            UserError: no more calls are made, or what is left does not suffice for this one.
        """
        price, budget = self.ledger.price, self._config.max_cost_dollars
        dollars = price.dollars(prompt_tokens, 0, self._config.max_reply_tokens) if price and budget else 0.0
        while budget and self.ledger.totals["dollars"] + sum(self._reserved) + dollars > budget:
            if not self._reserved:
                self._stopped = self._stopped or (
                    f"partner.max_cost_dollars ({budget:g}) is reached: ${self.ledger.totals['dollars']:.4f} in "
                    f"{self.ledger.totals['calls']} calls. What was finished is kept; raise it and run the same "
                    "command again."
                )
                break
            await asyncio.sleep(0.02)  # those under way may cost less than what is set aside for them
        if self._stopped:
            raise UserError(self._stopped)
        self._reserved.append(dollars)
        return dollars

    def _read(self, completion: _Completion, call: Call, name: str) -> Reply | _Failure:
        """The reply in what came back. It is in the ledger, with its cost, before anybody hears it."""
        outcome = self._outcome(completion)
        reply = (name, outcome) if isinstance(outcome, Reply) else None
        if usage := completion.usage:
            cached = (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0
            self.ledger.add_call(usage.prompt_tokens, cached, usage.completion_tokens, reply)
            call.tokens = usage.prompt_tokens + usage.completion_tokens
        else:
            self.ledger.add(reply, calls=1, calls_without_usage=1)
        return outcome

    def _outcome(self, completion: _Completion) -> Reply | _Failure:
        if not completion.choices or completion.choices[0].message is None:
            self.ledger.add(empty_replies=1)
            return _Failure("EmptyReply: there is no choice in it")
        message, ended = completion.choices[0].message, completion.choices[0].finish_reason
        if message.refusal or ended == "content_filter" or not message.content:
            self.ledger.add(refused_replies=1)
            return _Failure(f"NoReply: {self._one_line(message.refusal or f'empty, {ended}')}")
        return Reply(message.content, cut=ended == "length")

    def _note_unseen(self, prompt_tokens: int, name: str) -> None:
        """Nobody saw how a call ended. If it was sent, it may have to be paid for, so its estimate counts."""
        if not prompt_tokens or not self.ledger.price:
            self.ledger.add(calls=1, **{name: 1})
        else:
            self.ledger.add_call(prompt_tokens, 0, self._config.max_reply_tokens)
            self.ledger.add(estimated_calls=1, **{name: 1})

    def _refusal(self, error: openai.APIStatusError) -> _Failure:
        """What an HTTP error means for the call, the dialogue and the run."""
        config, reason = self._config, self._told(error)
        where, told = f"The partner's service at {config.base_url}", self._one_line(error.message)
        status = error.status_code
        if status == 401:
            return _Failure(reason, f"{where} refuses the key in {KEY}; set the right one.")
        if status == 402 or (status == 429 and {error.code, error.type} & _NO_QUOTA):
            return _Failure(
                reason,
                f"The account behind {KEY} has no quota left ({told}). Add credit and run the same command again; "
                "what was finished is kept.",
            )
        if status == 403:
            return _Failure(reason, f"{where} does not let this key use {config.model} ({told}).")
        if status == 404:
            return _Failure(
                reason,
                f"{where} has no model {config.model} ({told}); check partner.model and partner.base_url.",
            )
        after = _retry_after(error.response.headers)
        if after is not None and after > _PATIENCE_SECONDS:
            return _Failure(
                reason,
                f"{where} asks for a pause of {after:.0f} seconds ({told}). Run the same command again then; what was "
                "finished is kept.",
            )
        if status in (408, 409, 429) or status >= 500:
            return _Failure(reason, crowded=status == 429 or after is not None, after_seconds=after)
        if error.code in _ONE_DIALOGUE or status == 413:
            return _Failure(reason, again=False)
        return _Failure(reason, f"{where} does not accept a request for {config.model} ({status}: {told}).")

    def _told(self, error: BaseException) -> str:
        return f"{type(error).__name__}: {self._one_line(str(error))}"

    def _one_line(self, text: str) -> str:
        """What a service says, without the key, which some repeat."""
        return shorten(text.replace(self._key, "***"), 200, placeholder=" ...")


class ChatPlayer:
    """A model behind an API in one seat.

    Args:
        system: who it is and how it plays.
        usable: (what it read, what it said) -> its turn, mended if need be. Raises ValueError, whose text
            tells what would be right, for what cannot be mended; then it is asked once more.
        seed: of the service's sampling, for those that heed it.
    """

    def __init__(self, service: ChatService, system: str, usable: Callable[[str, str], str], seed: int):
        self._service, self._usable, self._seed = service, usable, seed
        self._messages: list[Message] = [{"role": "system", "content": system}]

    async def respond(self, observation: str) -> str:
        self._messages.append({"role": "user", "content": observation})
        try:
            turn = await self._turn(observation, self._messages)
        except _Unusable as first:
            complaint = {"role": "user", "content": f"{first} Say it again, as exactly one turn."}
            said = {"role": "assistant", "content": first.text}
            self._service.ledger.add(asked_again=1)
            try:
                turn = await self._turn(observation, [*self._messages, said, complaint])
            except _Unusable as second:
                self._service.ledger.add(unusable_turns=1)
                turn = second.text  # the game answers it as it answers anybody's mistake
        self._messages.append({"role": "assistant", "content": turn})
        return turn

    def recall(self, observation: str, text: str) -> None:
        self._messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": text}]

    async def _turn(self, observation: str, messages: Sequence[Message]) -> str:
        text, cut = await self._service.reply(messages, self._seed)
        if cut:
            raise _Unusable("Your turn is too long.", text)
        try:
            turn = self._usable(observation, text)
        except ValueError as error:
            raise _Unusable(str(error), text) from None
        if turn != text.strip():
            self._service.ledger.add(mended_turns=1)
        return turn


class _Unusable(Exception):
    def __init__(self, reason: str, text: str):
        super().__init__(reason)
        self.text = text


def chat_service(config: PartnerConfig, ledger: Path | None, cache: Path | None) -> ChatService:
    """The service that `config` names. Raises UserError if it cannot be one; see `ChatService`."""
    return ChatService(config, Ledger(ledger, price_of(config.model)), cache if config.cache else None)


def check_service(config: PartnerConfig) -> None:
    """Raises UserError if the service that `config` names cannot be used."""
    service = chat_service(config.model_copy(update={"cache": False}), None, None)
    try:
        service.check()
    finally:
        service.close()


def _read_key(config: PartnerConfig) -> str:
    key = os.environ.get(KEY, "").strip()
    if not key and config.base_url == OPENAI:
        raise UserError(f"{config.model} needs a key: set the environment variable {KEY}.")
    if not all("!" <= letter <= "~" for letter in key):
        raise UserError(f"The environment variable {KEY} holds a character that no key has; set it again.")
    return key or "none"  # a server of one's own need not ask for one


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the service wants to be left alone for; None if it does not say."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with suppress(KeyError, ValueError):
            return max(float(headers[name]) * unit, 0.0)
    with suppress(KeyError, ValueError, TypeError):
        return max(parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time(), 0.0)
    return None
