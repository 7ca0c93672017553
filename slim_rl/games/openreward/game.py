"""An environment as a game."""

from collections.abc import Mapping, Sequence

from slim_rl.core.game import Task
from slim_rl.core.message import Message, Tool, ToolCall
from slim_rl.core.tools import ToolGame
from slim_rl.games.openreward.client import Address, Session, Terminal
from slim_rl.games.openreward.parameters import Parameters, episode_reward

NUDGE = "There is no tool call in your message. Call one of the tools to go on."


class EnvironmentGame(ToolGame):
    """One session, opened by the first `observe`.

    A turn without a call goes to the environment's terminal tool and ends the episode; without such a tool the policy
    is told to call one. The environment ends the episode with a result that is `finished`.
    """

    step_seconds = 900.0

    def __init__(self, task: Task, parameters: Parameters, address: Address):
        super().__init__(task.game_id, (), parameters.max_turns)
        self._environment, self._spec = task.state["environment"], task.state["task_spec"]
        self._parameters, self._address = parameters, address
        self._session: Session | None = None
        self._tools: tuple[Tool, ...] = ()
        self._terminal: Terminal | None = None
        self._rewards: list[float] = []
        self._finished = False

    def tools(self, seat: str) -> Sequence[Tool]:
        return self._tools

    async def observe(self, seat: str) -> Sequence[Message]:
        if self._session is None:
            self._session = Session(self._address)
            await self._session.open()
            await self._session.start(self._environment, self._spec)
            self._tools, self._terminal = await self._session.tools()
            self._unseen = await self._session.prompt()
        return await super().observe(seat)

    async def call(self, call: ToolCall) -> str:
        return await self._run(call.name, call.arguments)

    async def answer(self, text: str) -> str | None:
        if self._terminal is None:
            return NUDGE
        await self._run(self._terminal.name, {self._terminal.argument: text} if self._terminal.argument else {})
        return None

    def rewards(self) -> Mapping[str, float] | None:
        reward = episode_reward(self._rewards, self._finished, self._parameters)
        return None if reward is None else {self.seats[0]: reward}

    def metrics(self) -> Mapping[str, float]:
        return {**super().metrics(), "unrewarded": self.rewards() is None}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _run(self, name: str, arguments: Mapping[str, object]) -> str:
        assert self._session is not None  # `observe` comes first
        output = await self._session.call(name, arguments)
        if output.reward is not None:
            self._rewards.append(output.reward)
        if output.finished:
            self._finished = self._over = True
        return output.text
