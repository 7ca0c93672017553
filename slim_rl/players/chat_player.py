"""A model behind an API in one seat."""

from collections.abc import Callable, Sequence

from slim_rl.core.message import Message, Tool, said, text_of, without_thoughts
from slim_rl.core.player import Player
from slim_rl.players.chat import ChatMessage, ChatService


class ChatPlayer(Player):
    """A player of text that asks a service for its turns.

    Args:
        system: the system prompt.
        repair: (observation, reply) -> the one turn in the reply. Raises ValueError, with what would be right, if there
            is none; then the service is asked once more.
        seed: for the service's sampling, where the service supports one.
    """

    def __init__(self, service: ChatService, system: str, repair: Callable[[str, str], str], seed: int):
        self._service, self._repair, self._seed = service, repair, seed
        self._messages: list[ChatMessage] = [{"role": "system", "content": system}]

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        read = text_of(observation)
        self._messages.append({"role": "user", "content": read})
        try:
            turn = await self._turn(read, self._messages)
        except _Unusable as first:
            complaint = {"role": "user", "content": f"{first} Say it again, as exactly one turn."}
            self._service.ledger.add(asked_again=1)
            try:
                turn = await self._turn(read, [*self._messages, _own(first.text), complaint])
            except _Unusable as second:
                self._service.ledger.add(unusable_turns=1)
                turn = second.text  # the game answers this mistake like any other
        self._messages.append(_own(turn))
        return said(turn)

    def recall(self, observation: Sequence[Message], message: Message) -> None:
        self._messages += [{"role": "user", "content": text_of(observation)}, _own(message.text)]

    async def _turn(self, observation: str, messages: Sequence[ChatMessage]) -> str:
        reply, cut = await self._service.reply(messages, self._seed)
        text = without_thoughts(reply)
        if cut:
            raise _Unusable("Your turn is too long.", text)
        try:
            turn = self._repair(observation, text)
        except ValueError as error:
            raise _Unusable(str(error), text) from None
        if turn != text:
            self._service.ledger.add(repaired_turns=1)
        return turn


def _own(turn: str) -> ChatMessage:
    return {"role": "assistant", "content": turn or "(nothing)"}  # some services refuse an empty message


class _Unusable(Exception):
    def __init__(self, reason: str, text: str):
        super().__init__(reason)
        self.text = text
