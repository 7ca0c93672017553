"""The base class of games with one seat that calls tools."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence

from slim_rl.core.game import Game
from slim_rl.core.message import Message, Tool, ToolCall, heard

_MISTAKES = {
    "invalid_json": "This tool call is not valid JSON, or its arguments are not a JSON object.",
    "unclosed_block": "This tool call does not end; close it before your turn ends.",
    "missing_name": "This tool call names no tool.",
    "unknown_tool": "There is no tool of this name.",
}


class BadCall(Exception):
    """A well-formed call that the tool refuses, through the caller's mistake. The caller reads the message."""


class ToolGame(Game):
    """A game of one seat that calls tools and then answers.

    A turn with tool calls runs them in order, whatever text is around them. A turn without any is the answer and ends
    the game. What is only in a thought is no call. A call that is malformed (also one that the turn limit cut), that
    names no tool of the game or that the tool refuses is answered with what is wrong and counted by kind in the
    metrics; the others of that turn are run.

    Args:
        max_turns: turns after which the game is truncated.
    """

    seats: tuple[str, ...] = ("solver",)

    def __init__(self, game_id: str, prompt: Sequence[Message], max_turns: int):
        self.game_id = game_id
        self._unseen: list[Message] = list(prompt)
        self._turns, self._max_turns = 0, max_turns
        self._over = False
        """Whether the game ended before its last turn; a tool may end it."""
        self.calls: Counter[str] = Counter()
        """Calls by status."""

    @abstractmethod
    def tools(self, seat: str) -> Sequence[Tool]: ...

    @abstractmethod
    async def call(self, call: ToolCall) -> str:
        """The result of a well-formed call to one of the tools.

        Raises:
            BadCall: the arguments are wrong.
            GameFailed: the tool broke.
        """

    @abstractmethod
    async def answer(self, text: str) -> str | None:
        """Take a turn without a call. Returns what the seat reads if that is not the end; None ends the game."""

    @property
    def turn(self) -> str | None:
        return None if self._over or self.truncated else self.seats[0]

    @property
    def truncated(self) -> bool:
        return not self._over and self._turns >= self._max_turns

    async def observe(self, seat: str) -> Sequence[Message]:
        unseen, self._unseen = tuple(self._unseen), []
        return unseen

    async def step(self, message: Message) -> None:
        self._turns += 1
        if not message.tool_calls:
            reply = await self.answer(message.text)
            self._over = reply is None
            self._unseen += heard(reply) if reply is not None else ()
        for call in message.tool_calls:
            if self._over:  # a tool ended the game
                break
            status, text = await self.run(call)
            self._unseen.append(Message("tool", text if status == "ok" else f"Error: {text}"))

    async def run(self, call: ToolCall) -> tuple[str, str]:
        """Run one call. Returns its status, `ok` or the caller's mistake, and the result or what is wrong."""
        status: str = call.status
        text = _MISTAKES.get(status, "")
        if status == "ok" and call.name not in {tool.name for tool in self.tools(self.seats[0])}:
            status, text = "unknown_tool", _MISTAKES["unknown_tool"]
        if status == "ok":
            try:
                text = await self.call(call)
            except BadCall as error:
                status, text = "refused", str(error)
        self.calls[status] += 1
        return status, text.encode(errors="replace").decode()  # JSON may hold unpaired surrogates

    def metrics(self) -> Mapping[str, float]:
        wrong = {f"calls.{status}": self.calls[status] for status in (*_MISTAKES, "refused")}
        return {"turn_count": self._turns, "calls": self.calls.total(), **wrong}
