"""A model behind an OpenAI-compatible API: calls, retries and budget. It knows no games.

The retries of OpenAI's client are off: every attempt passes the limits, so they see every call, and a refusal slows
down all callers.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple, Self

import aiohttp
import httpx2
import openai
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from slim_rl.core.errors import PlayerFailed, UserError
from slim_rl.core.message import without_thoughts
from slim_rl.players.config import ServiceConfig
from slim_rl.players.failures import Failure, Failures
from slim_rl.players.ledger import Call, Ledger
from slim_rl.players.limits import Limits
from slim_rl.runtime.keys import read_key
from slim_rl.runtime.retry import retry

_MAY_FAIL = 10
"""Failures in a row of a service that works: each further one pauses all calls, for twice as long as the last."""
_ANY_CONTEXT = 2**32
"""No call has so many tokens."""
_MORE_PAUSES = 2
"""After so many pauses in a row more than `max_retries` the service is down."""
OPENAI, _OPENAI_KEY = (ServiceConfig.model_fields[name].default for name in ("base_url", "key_variable"))
ChatMessage = dict[str, str]

_BROKEN = (openai.APIError, httpx2.HTTPError, aiohttp.ClientError, OSError, ValueError, RecursionError)
"""What a call raises that was cut off, timed out, or answered with something that is no reply."""


_SMALLEST: list[ChatMessage] = [{"role": "user", "content": "Hello"}]


class Reply(NamedTuple):
    text: str
    cut: bool = False
    """Whether it reached the limit on its length."""


class _Again(PlayerFailed):
    """The same call may succeed later."""


class ChatService:
    """One of `services`, shared by all its seats. Belongs to one event loop.

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
        self._limits = Limits(config.max_requests_per_minute, config.max_tokens_per_minute, config.max_concurrent)
        self._under_way: set[asyncio.Task[Reply | Failure]] = set()
        self._stopped = ""
        """Why no more calls are made."""
        self._form = ("max_tokens", True)
        """The name of the limit on a reply's length, and whether a seed is sent: what the service has not refused yet."""
        self._accepted = False
        """Whether it has accepted a call in this form."""
        self._trying = asyncio.Lock()
        self._refused: dict[str, Failure] = {}
        """By key, calls that it refused and would refuse again."""
        self._failures_in_a_row = 0
        connections = httpx2.Limits(
            max_connections=config.max_concurrent, max_keepalive_connections=config.max_concurrent
        )
        try:
            self._client = openai.AsyncOpenAI(
                api_key=key or "none",  # the client wants one
                base_url=config.base_url,
                max_retries=0,
                timeout=config.timeout_seconds,
                http_client=openai.DefaultAioHttpClient(
                    limits=connections, event_hooks={"response": [_correct_status]}
                ),
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise UserError(
                f"services.{name}.base_url is {config.base_url}, which is not an address: {error}."
            ) from None

    async def check(self) -> None:
        """Make the smallest call there is, so that a wrong key is reported before any work is done.

        Raises:
            UserError: the service cannot be used.
        """
        try:
            await self.reply(_SMALLEST, 0, replay=False)
        except PlayerFailed as error:
            raise UserError(
                f"{self._failures.where} does not work: {error}; try again later or check "
                f"services.{self._name}.base_url."
            ) from None

    async def reply(self, messages: Sequence[ChatMessage], seed: int, replay: bool = True) -> Reply:
        """The model's next message.

        If the caller is cancelled, a call under way goes on, and its reply is kept in the ledger. No call follows it.

        Args:
            replay: take a reply that is in the ledger.

        Raises:
            PlayerFailed: the service gave no reply after all retries.
            UserError: no call to it can succeed, or the budget is spent.
        """
        key = self._key(messages, seed)
        if replay and (paid := self.ledger.replies.get(key)) is not None:
            self.ledger.add(replayed=1)
            return self._readable(Reply(*paid))
        numbers, most = count(), self._config.max_retries + 1

        async def attempt() -> Reply:
            if self._stopped:
                raise UserError(self._stopped)
            number = next(numbers)
            outcome = self._refused.get(key) or await self._ask(messages, (seed + number) % 2**31, key)
            if isinstance(outcome, Reply):
                return self._readable(outcome)
            if self._stopped:
                raise UserError(self._stopped)
            kind = _Again if outcome.again else PlayerFailed
            raise kind(f"{outcome.reason} (call {number + 1} of at most {most})")

        return await retry(attempt, _Again, tries=most)

    def _key(self, messages: Sequence[ChatMessage], seed: int) -> str:
        """What a reply is kept by in the ledger. The names of the fields are not those that are sent."""
        config = self._config
        body = {
            "model": config.model,
            "messages": list(messages),
            "temperature": config.temperature,
            "max_completion_tokens" if config.base_url == OPENAI else "max_tokens": config.max_reply_tokens,
        }
        return hashlib.sha256(json.dumps([config.base_url, body, seed]).encode()).hexdigest()

    def _readable(self, reply: Reply) -> Reply:
        if reply.cut and not without_thoughts(reply.text):
            raise PlayerFailed(
                f"NoReply: the model thought for all of its {self._config.max_reply_tokens} tokens and said nothing; raise "
                f"services.{self._name}.max_reply_tokens."
            )
        return reply

    async def _ask(self, messages: Sequence[ChatMessage], seed: int, key: str) -> Reply | Failure:
        """A call, in a form that the service accepts. One that it refuses, though it has accepted others, fails alone.

        Raises:
            UserError: it accepts none.
        """
        while True:
            limit, seeded = form = self._form
            body = {"model": self._config.model, "messages": list(messages), limit: self._config.max_reply_tokens}
            if self._config.temperature is not None:
                body["temperature"] = self._config.temperature
            outcome = await self._call({**body, "seed": seed} if seeded else body, key)
            if isinstance(outcome, Reply):
                return outcome
            if outcome.words and not self._accepted:
                if messages != _SMALLEST:
                    async with self._trying:
                        if not self._accepted:
                            await self.reply(_SMALLEST, 0, replay=False)
                elif seeded and re.search(r"\bseed\b", outcome.words):
                    self._form = limit, False
                elif limit == "max_tokens" and "max_completion_tokens" in outcome.words:
                    self._form = "max_completion_tokens", seeded
            if not outcome.words or self._form == form:
                break
        if outcome.words and self._accepted:
            outcome = outcome._replace(sentence="", again=False)
        if not (outcome.again or outcome.sentence):
            self._refused[key] = outcome
        self._stopped = self._stopped or outcome.sentence
        return outcome

    async def close(self) -> None:
        """Close connections.

        Waits for the replies of the calls under way, at most `timeout_seconds`, so that no run pays for them again.
        """
        self._stopped = self._stopped or f"The service {self._name} is closed."
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self._config.timeout_seconds + 2)
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _call(self, body: dict[str, Any], key: str) -> Reply | Failure:
        """One request. Its reply goes to the ledger under `key`."""
        prompt_tokens = sum(len(message["content"]) // 3 + 8 for message in body["messages"])
        entered = await self._limits.enter(prompt_tokens + self._config.max_reply_tokens)
        try:
            self._check_budget(prompt_tokens)
            call = self.ledger.begin(prompt_tokens, self._config.max_reply_tokens)
        except UserError:
            self._limits.leave(entered)
            raise

        async def send() -> Reply | Failure:
            try:
                outcome = await self._send(body, call, key)
                self._notice(outcome, entered)
                return outcome
            finally:
                self._limits.leave(entered)

        sending = asyncio.create_task(send())
        self._under_way.add(sending)
        sending.add_done_callback(self._under_way.discard)
        return await asyncio.shield(sending)

    def _notice(self, outcome: Reply | Failure, entered: float) -> None:
        """Slow down a service that fails, and stop calling one that goes on failing."""
        if isinstance(outcome, Reply) or not (outcome.crowded or outcome.down):
            self._failures_in_a_row = 0
            self._limits.succeeded(entered)
            return
        self._failures_in_a_row += 1
        if outcome.crowded or self._failures_in_a_row >= _MAY_FAIL:
            self._limits.pause(entered, outcome.after_seconds)
        if self._limits.refusals > self._config.max_retries + _MORE_PAUSES:
            self._stopped = self._stopped or (
                f"{self._failures.where} is down: {self._failures_in_a_row} calls in a row failed, the last with "
                f"{outcome.reason}. Run the same command again when it answers; finished work is kept."
            )

    async def _send(self, body: dict[str, Any], call: Call, key: str) -> Reply | Failure:
        create: Any = self._client.chat.completions.create
        try:
            async with asyncio.timeout(self._config.timeout_seconds):
                completion = await create(**body)
        except openai.APIStatusError as error:
            call.free(**{type(error).__name__: 1})
            failure = self._failures.refused(error)
            if not failure.words:
                self._stopped = self._stopped or failure.sentence
            return failure
        except _BROKEN as error:
            sent = not isinstance(error.__cause__, httpx2.ConnectError)
            cause: BaseException = error
            while isinstance(cause, openai.APIConnectionError | httpx2.HTTPError) and cause.__cause__:
                cause = cause.__cause__  # the client calls a dropped connection a time-out
            (call.unseen if sent else call.free)(**{type(cause).__name__: 1})
            return Failure(self._failures.reason(cause), down=True)
        self._accepted = True
        return self._read(completion, call, key)

    def _check_budget(self, prompt_tokens: int) -> None:
        """Raises UserError: no more calls are made, or one more may cost more than is left."""
        budget, totals = self._config.max_cost_dollars, self.ledger.totals
        dollars = self.ledger.most_dollars(prompt_tokens, self._config.max_reply_tokens)
        if budget and totals["dollars"] + dollars > budget:
            self._stopped = self._stopped or (
                f"services.{self._name}.max_cost_dollars ({budget:g}) is reached: ${totals['dollars']:.4f} in "
                f"{totals['calls']} calls. Finished work is kept; raise it and run the same command again."
            )
        if self._stopped:
            raise UserError(self._stopped)

    def _read(self, completion: ChatCompletion, call: Call, key: str) -> Reply | Failure:
        """The reply in a completion. It is in the ledger, with its cost, before the caller gets it."""
        # The client does not check what a server sent, and servers leave out what is not needed.
        choices = getattr(completion, "choices", None) or []
        choice = choices[0] if isinstance(choices, list) and choices else None
        message, ended = getattr(choice, "message", None), str(getattr(choice, "finish_reason", "no choice")).lower()
        text = _text(getattr(message, "content", None))
        if not (isinstance(choices, list) and isinstance(message, ChatCompletionMessage | None)) or text is None:
            call.unseen(BadReply=1)
            return Failure(f"BadReply: {self._failures.one_line(str(choices))}", down=True)
        refusal = getattr(message, "refusal", None) or getattr(completion, "error", None)
        if message is None or ended == "content_filter" or (refusal and not text):
            outcome: Reply | Failure = Failure(f"NoReply: {self._failures.one_line(str(refusal or f'empty, {ended}'))}")
            self.ledger.add(refused_replies=1)
        else:
            outcome = Reply(text, cut=ended in ("length", "max_tokens"))
        bought = (key, outcome) if isinstance(outcome, Reply) else None
        usage = getattr(completion, "usage", None)
        tokens: list[Any] = [getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens")]
        cached = getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", None)
        if all(type(n) is int and 0 <= n < _ANY_CONTEXT for n in tokens):
            call.answered(
                tokens[0], cached if type(cached) is int and 0 <= cached <= tokens[0] else 0, tokens[1], bought
            )
        else:
            call.unseen(bought, calls_without_usage=1)
        return outcome


async def _correct_status(response: httpx2.Response) -> None:
    """Give an error that came with the status 200, as some gateways send it, the status that it names; 500 if none."""
    await response.aread()
    with suppress(ValueError, RecursionError):
        match response.json():
            case {"choices": [_, *_]}:
                pass
            case {"error": error} if error and response.is_success:
                code = str(error.get("code")) if isinstance(error, dict) else ""
                response.status_code = int(code) if re.fullmatch("[45][0-9]{2}", code) else 500


def _text(content: Any) -> str | None:
    """The text of a message's content, without a part that is a thought; None if it has another kind of part."""
    texts = []
    for part in (
        content if isinstance(content, list) else [{"type": "text", "text": "" if content is None else content}]
    ):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": str(kind)} if re.search("think|reason", kind):
                pass
            case _:
                return None
    return "".join(texts).encode(errors="replace").decode()  # JSON may hold unpaired surrogates


def _read_key(name: str, config: ServiceConfig) -> str:
    """The service's key; "" for a server that needs none."""
    variable = config.key_variable
    key = read_key(variable) if variable else ""
    if variable and not key and (config.base_url == OPENAI or variable != _OPENAI_KEY):
        raise UserError(f"services.{name} needs a key: set the environment variable {variable}.")
    return key
