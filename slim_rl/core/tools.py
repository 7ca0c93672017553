"""The base class of games with one seat that calls tools."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence

from slim_rl.core.message import Message, Tool, ToolCall

_MISTAKES = {
    "invalid_json": "This tool call is not valid JSON, or its arguments are not a JSON object.",
    "unclosed_block": "This tool call does not end; close it before your turn ends.",
    "missing_name": "This tool call names no tool.",
    "unknown_tool": "There is no tool of this name.",
}


class ToolGame(ABC):
    """A game of one seat that calls tools and then answers; see `slim_rl.core.game.Game`.

    A turn with tool calls runs them in order. A turn without any is the answer and ends the game. A malformed call is
    answered with what is wrong and counted by kind in the metrics.

    Args:
        max_turns: turns after which the game is truncated.
    """

    seats: tuple[str, ...] = ("solver",)

    def __init__(self, game_id: str, prompt: Sequence[Message], max_turns: int):
        self.game_id = game_id
        self._unseen: list[Message] = list(prompt)
        self._turns, self._max_turns = 0, max_turns
        self._answered = False
        self.calls: Counter[str] = Counter()
        """Calls by status."""

    @abstractmethod
    def tools(self, seat: str) -> Sequence[Tool]: ...

    @abstractmethod
    async def call(self, call: ToolCall) -> str:
        """The result of a well-formed call to one of the tools. Raises GameFailed if the tool broke."""

    @abstractmethod
    async def answer(self, text: str) -> None:
        """Take the final answer."""

    @abstractmethod
    def rewards(self) -> Mapping[str, float]: ...

    @property
    def turn(self) -> str | None:
        return None if self._answered or self.truncated else self.seats[0]

    @property
    def truncated(self) -> bool:
        return not self._answered and self._turns >= self._max_turns

    async def observe(self, seat: str) -> Sequence[Message]:
        unseen, self._unseen = tuple(self._unseen), []
        return unseen

    async def step(self, message: Message) -> None:
        self._turns += 1
        if not message.tool_calls:
            self._answered = True
            await self.answer(message.text)
        for call in message.tool_calls:
            self._unseen.append(Message("tool", await self._result(call)))

    async def _result(self, call: ToolCall) -> str:
        status = call.status
        if status == "ok" and call.name not in {tool.name for tool in self.tools(self.seats[0])}:
            status = "unknown_tool"
        self.calls[status] += 1
        if status != "ok":
            return f"Error: {_MISTAKES[status]}"
        return (await self.call(call)).encode(errors="replace").decode()  # JSON may hold unpaired surrogates

    def metrics(self) -> Mapping[str, float]:
        malformed = {f"calls.{status}": self.calls[status] for status in _MISTAKES}
        return {"turns": self._turns, "calls": self.calls.total(), **malformed}

    async def close(self) -> None:  # noqa: B027
        """Override it to free what the tools hold."""
