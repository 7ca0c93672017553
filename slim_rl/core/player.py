"""Who can sit in a seat. A player knows messages in and a message out, nothing of a game's rules."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from slim_rl.core.episode import TokenTrace
from slim_rl.core.errors import UserError
from slim_rl.core.message import Message, Tool, said, text_of, without_thoughts


class ContextFull(Exception):
    """The dialogue no longer fits the model's context. The episode ends truncated."""


class Interrupted(Exception):
    """The engine was told to stop sampling. The dialogue can continue from there."""


@dataclass(frozen=True)
class Constraint:
    """How a model's turn is sampled."""

    begins: tuple[str, ...] = ()
    """Texts: the tokens that all of them begin with come first. They are context."""
    calls: bool = True
    """Whether it may call a tool."""
    max_new_tokens: int | None = None
    """Its limit, if that is smaller than the model's own."""
    logprobs: bool = False
    """Whether the turn tells its tokens with their log-probs."""


class Player(ABC):
    """Sits in one seat for one episode and remembers its own conversation."""

    @property
    def trace(self) -> TokenTrace | None:
        """Its tokens, if they are to be trained on."""
        return None

    @abstractmethod
    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        """The player's next turn, after reading what it has not seen yet.

        Args:
            tools: what it may call; the same at every turn.

        Raises:
            PlayerFailed: the engine or service failed; the player is not at fault.
            ContextFull, Interrupted
        """

    def can_say(self, text: str) -> bool:
        """Whether others can hear exactly `text` in a turn of this player."""
        return without_thoughts(text) == text

    def recall(self, observation: Sequence[Message], message: Message) -> None:  # noqa: B027
        """Take into memory a turn of its own from before an interruption."""

    def resume(self, trace: TokenTrace) -> None:  # noqa: B027
        """Continue from the trace of an interrupted episode, whose finished turns were recalled."""

    def close(self) -> None:  # noqa: B027
        """Free what the player holds, once the episode has ended."""

    def say(self, observation: Sequence[Message], message: Message, tools: Sequence[Tool] = ()) -> None:
        """Take a turn that was decided elsewhere."""
        self.recall(observation, message)

    def take_back(self) -> None:
        """Forget the last turn and what was read before it."""
        raise self._not_a_model()

    def constrain(self, constraint: Constraint) -> None:
        """Sample the next turn like this."""
        raise self._not_a_model()

    def _not_a_model(self) -> UserError:
        return UserError(f"{type(self).__name__} can be told what to say, but only a model of ours how to say it.")


class ScriptedPlayer(Player):
    """A player without a model that reads and says text. Its turns depend only on its seed and on what it has read."""

    @abstractmethod
    def turn(self, observation: str) -> str:
        """Its next turn."""

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        return said(self.turn(text_of(observation)))

    def recall(self, observation: Sequence[Message], message: Message) -> None:
        self.turn(text_of(observation))
