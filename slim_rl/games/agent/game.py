"""One episode of an agent: its requests are the policy's turns.

A request goes on with the sequence whose messages it repeats: what the model said there is never encoded again, even if the
agent sends it back with other white space or other JSON. A request that repeats no sequence (an edited, a compacted or a
branched history, a sub-agent, a second choice) begins one of its own. Nothing that was not sampled is trained on.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from slim_rl.core.errors import GameFailed, UserError
from slim_rl.core.game import Game, Task
from slim_rl.core.message import Message, Tool
from slim_rl.core.player import Constraint
from slim_rl.games.agent.door import Door
from slim_rl.games.agent.parameters import Parameters
from slim_rl.games.agent.wire import Refusal, Request, reply_to, same, turns_of

SEAT = "agent"
Agent = Callable[[Mapping[str, Any], str, str], Awaitable[Any]]
"""(task, base URL, key) -> the reward, or an object with `reward`. Whatever it raises is the agent's fault."""


@dataclass
class _Sequence:
    """What one sequence of tokens consists of."""

    seat: str
    tools: tuple[Tool, ...]
    messages: list[Message] = field(default_factory=list)
    """As the client knows them."""

    def continued_by(self, request: Request) -> bool:
        """Whether a request repeats it and then says more."""
        known, more = len(self.messages), request.messages[len(self.messages) :]
        repeats = self.tools == request.tools and all(map(same, self.messages, request.messages[:known]))
        return bool(known and more) and repeats and not turns_of(more)


class _Ask:
    def __init__(self, request: Request):
        self.request = request
        self.reply: asyncio.Future[tuple[Message, Message]] = asyncio.get_running_loop().create_future()
        self.sequence: _Sequence
        self.unseen: Sequence[Message] = ()

    def refuse(self, text: str, code: str) -> None:
        if not self.reply.done():
            self.reply.set_exception(Refusal(text, code))
            self.reply.exception()  # seen, even if nobody waits for it


class AgentGame(Game):
    """The seat is the model behind the agent's client. Each sequence is a seat: `agent`, `agent#2` and so on; they share
    the agent's reward."""

    def __init__(self, task: Task, parameters: Parameters, agent: Agent, name: str, door: Door):
        self.game_id, self._task, self._name = task.game_id, task, name
        self._parameters, self._agent, self._door = parameters, agent, door
        self.step_seconds = parameters.seconds + 10.0  # the agent's own limit comes first
        self._asks: deque[_Ask] = deque()
        self._woken = asyncio.Event()
        """A request has come, or the agent has ended."""
        self._running: asyncio.Task[Any] | None = None
        self._key = "[key]"
        self._ask: _Ask | None = None
        self._sequences: list[_Sequence] = []
        self._turns = self._calls = self._tokens = self._encoded_again = 0
        self._continued = self._rewritten = 0
        """Requests that go on with a sequence, and those that say otherwise what the model said."""
        self._limited = False
        self._result: Mapping[str, Any] | None = None

    @property
    def seats(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(sequence.seat for sequence in self._sequences) or (SEAT,)

    @property
    def turn(self) -> str | None:
        if self._running is None:
            return SEAT
        return self._ask.sequence.seat if self._ask else None

    @property
    def truncated(self) -> bool:
        return self._limited and self._result is None

    def tools(self, seat: str) -> Sequence[Tool]:
        return next((sequence.tools for sequence in self._sequences if sequence.seat == seat), ())

    def constraint(self, seat: str) -> Constraint | None:
        return self._ask.request.constraint if self._ask else None

    async def observe(self, seat: str) -> Sequence[Message]:
        if self._running is None:
            self._running = asyncio.create_task(self._run())
            self._running.add_done_callback(lambda task: self._woken.set())
            await self._next()
        if self._ask is None:
            raise GameFailed("NoRequest: the agent ended without asking its model anything")
        return self._ask.unseen

    async def step(self, message: Message) -> None:
        assert self._ask is not None
        reply = reply_to(self._ask.request, message)
        self._ask.sequence.messages += [*self._ask.unseen, replace(reply, sampled=message.sampled)]
        self._turns += 1
        self._calls += len(reply.tool_calls)
        self._tokens += message.sampled.tokens if message.sampled else 0
        if not self._ask.reply.done():
            self._ask.reply.set_result((reply, message))
        await self._next()

    async def outgrown(self) -> bool:
        assert self._ask is not None
        self._limited = True
        self._ask.refuse("The messages are longer than the model's context.", "context_length_exceeded")
        await self._next()
        return True

    def rewards(self) -> Mapping[str, float] | None:
        reward = float(self._result["reward"]) if self._result else 0.0
        return dict.fromkeys(self.seats, reward)

    def metrics(self) -> Mapping[str, float]:
        own = {name: value for name, value in (self._result or {}).items() if name != "reward"}
        counted = {"turn_count": self._turns, "calls": self._calls, "sequences": len(self._sequences)}
        return {**own, **counted, "encoded_again_tokens": self._encoded_again, "sampled_tokens": self._tokens}

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._running

    async def _run(self) -> Any:
        async with (
            asyncio.timeout(self._parameters.seconds),
            self._door.let_in(self._answer) as (url, key),
        ):
            self._key = key
            return await self._agent(self._task.state["task"], url, key)

    async def _answer(self, request: Request) -> tuple[Message, Message]:
        ask = _Ask(request)
        self._asks.append(ask)
        self._woken.set()
        return await ask.reply

    async def _next(self) -> None:
        """Wait for the agent's next request that may be played, or for its end.

        Raises:
            GameFailed: the agent raised, or took too long.
            UserError: what it returned is no reward.
        """
        assert self._running is not None
        self._ask = None
        while self._ask is None:
            if self._asks:
                self._accept(self._asks.popleft())
            elif self._running.done():
                self._end(self._running)
                return
            else:
                self._woken.clear()
                await self._woken.wait()

    def _accept(self, ask: _Ask) -> None:
        if self._turns >= self._parameters.max_turns:
            self._limited = True
            ask.refuse(f"The episode has had its {self._turns} turns.", "max_turns_exceeded")
            return
        known = [sequence for sequence in self._sequences if sequence.continued_by(ask.request)]
        if known:
            ask.sequence = max(known, key=lambda sequence: len(sequence.messages))
            ask.unseen = ask.request.messages[len(ask.sequence.messages) :]
            self._continued += 1
        else:
            self._count_again(ask.request)
            self._rewritten += bool(turns_of(ask.request.messages))
            number = len(self._sequences) + 1
            ask.sequence = _Sequence(SEAT if number == 1 else f"{SEAT}#{number}", ask.request.tools)
            self._sequences.append(ask.sequence)
            ask.unseen = ask.request.messages
        self._ask = ask

    def _count_again(self, request: Request) -> None:
        """Count the tokens that the model sampled and that a new sequence has as context."""
        said = [turn for sequence in self._sequences for turn in turns_of(sequence.messages)]
        for turn in turns_of(request.messages):
            self._encoded_again += next((s.tokens for other in said if (s := other.sampled) and same(turn, other)), 0)

    def _end(self, running: asyncio.Task[Any]) -> None:
        error = running.exception()
        if self._rewritten and not self._continued:
            _tell_of_rewriting(self._name)
        if error is None:
            self._result = _result(running.result(), self._name)
        elif isinstance(error, UserError):
            raise error
        elif isinstance(error, TimeoutError):
            raise GameFailed(f"AgentTimeout: the agent took longer than {self._parameters.seconds:g} s")
        elif not self._limited:  # after a limit the agent may end as it likes
            raise GameFailed(f"{type(error).__name__}: {error}".replace(self._key, "[key]")) from None


@cache  # once a run
def _tell_of_rewriting(name: str) -> None:
    logging.getLogger(__name__).warning(
        "The agent %s sends back other words than its model said, so each of its requests begins a sequence of its own. "
        "Earlier turns are trained on as they were said, never as the agent rewrites them.",
        name,
    )


def _result(returned: Any, name: str) -> Mapping[str, float]:
    values = returned if isinstance(returned, Mapping) else {"reward": returned}
    numbers = {str(key): value for key, value in values.items() if isinstance(value, int | float)}
    if "reward" not in numbers or not all(map(math.isfinite, numbers.values())):
        raise UserError(
            f"The agent {name} returned {returned!r:.200}; a finite number, or an object with one as `reward`."
        )
    return numbers
