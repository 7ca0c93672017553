"""What every game is: seats that take turns, what each one sees, and what each one earns.

A game knows rules, messages and tools. It does not know models, tokens, or who sits where.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from slim_rl.core.message import Message, Tool, heard
from slim_rl.core.player import Constraint, Player

Purpose = Literal["train", "evaluate", "demonstrations"]


def series_seed(seed: int, purpose: Purpose) -> int:
    """The seed of the tasks for one purpose; no two purposes or run seeds share a series."""
    purposes = get_args(Purpose)
    return seed * len(purposes) + purposes.index(purpose)


def seed_of(*parts: object) -> int:
    """A seed of 64 bits that follows from the text of `parts`; the same on every machine."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little")


def base_seat(seat: str) -> str:
    """The seat of the taskset to which a seat belongs that a game has added: `solver` of `solver#2`. They share a player's
    name and a reward."""
    return seat.partition("#")[0]


@dataclass(frozen=True)
class Task:
    """One line of a games file."""

    game_id: str
    """Names the board or problem. Unique in its file."""
    prompt: str = ""
    """What the first seat reads first, if that is known before the game starts."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """All that `Taskset.load` needs, as JSON values."""
    ground_truth: str | None = field(default=None, compare=False)
    """The best end of the game, as the policy would write it. For readers of a games file; no stage reads it."""
    optimal_score: float | None = field(default=None, compare=False)
    """What that is worth, in the game's own units."""


class Game(ABC):
    """One game being played. `play()` is its only caller; a game is used once."""

    game_id: str
    """The task's id."""
    seats: tuple[str, ...]
    """The names of the seats, in the order in which they move first."""
    step_seconds: float = 60.0
    """Time limit of each `observe` and `step`. An episode that exceeds it has failed."""

    can_say: Callable[[str, str], bool] = staticmethod(lambda seat, text: True)
    """(seat, text) -> whether its player can say exactly this text in one turn; `play()` sets it. A game in which a seat
    has to say what another one made asks it first, or the maker wins by what nobody can say."""

    @property
    @abstractmethod
    def turn(self) -> str | None:
        """The seat that speaks next; None once the game is over."""

    @property
    def truncated(self) -> bool:
        """Whether the game ended because a limit was reached, not because its rules ended it."""
        return False

    def tools(self, seat: str) -> Sequence[Tool]:
        """What `seat` may call; the same for the whole game."""
        return ()

    @abstractmethod
    async def observe(self, seat: str) -> Sequence[Message]:
        """Everything `seat` may see and has not seen yet. At its first call, that is its prompt.

        Raises:
            GameFailed: the environment broke.
        """

    @abstractmethod
    async def step(self, message: Message) -> None:
        """Let the seat whose turn it is say `message`.

        The game answers what the rules forbid in the speaker's next observation. It does not raise, because a
        policy's mistakes are part of the episode.

        Raises:
            GameFailed: the environment broke.
        """

    def constraint(self, seat: str) -> Constraint | None:
        """How `seat`, which speaks next, has to speak; None leaves it free."""
        return None

    async def outgrown(self) -> bool:
        """Take note that the dialogue no longer fits the context of the seat whose turn it is. Returns whether the game goes
        on without that turn; otherwise the episode ends truncated."""
        return False

    @abstractmethod
    def rewards(self) -> Mapping[str, float] | None:
        """What each seat has earned so far; final once `turn` is None. None if nobody was given a reward: that is not
        a reward of 0, and the episode is left out of its group."""

    def metrics(self) -> Mapping[str, float]:
        """What the game reports of this episode, by name (questions asked, errors, ...)."""
        return {}

    async def close(self) -> None:  # noqa: B027
        """Free what the game holds. Called once, also for a game that failed."""


class TextGame(Game):
    """A game that is text alone and never waits: plain methods in place of `observe` and `step`."""

    @abstractmethod
    def read(self, seat: str) -> str:
        """See `observe`."""

    @abstractmethod
    def move(self, text: str) -> None:
        """See `step`."""

    async def observe(self, seat: str) -> Sequence[Message]:
        return heard(self.read(seat))

    async def step(self, message: Message) -> None:
        self.move(message.written)


class Demonstration(NamedTuple):
    """How one seat could play a game well, as a path of turns with ways out.

    A demonstrator who stops after i turns says `turns[0], ..., turns[i - 1], closings[i]`.
    """

    observations: Sequence[str | Sequence[Message]]
    """What the seat reads before turn i, text alone or messages; one more than `turns`."""
    turns: list[str]
    """What it says; tool calls as the model would write them."""
    closings: Sequence[str | None]
    """What would end the game well instead of turn i, None where it cannot be ended; one more than `turns`.
    The last one is there, unless the game has run out of turns: where no way out is shown, it is simply the seat's last
    turn."""
    tools: Sequence[Tool] = ()
    stopping: Sequence[float] = ()
    """How likely the demonstrator stops before turn i, as many as `closings`; empty: `warmstart.stop_probability`."""

    def read(self, i: int) -> Sequence[Message]:
        """Observation i as messages."""
        observation = self.observations[i]
        return heard(observation) if isinstance(observation, str) else observation


class ChatRules(NamedTuple):
    """How a chat model takes a seat."""

    system: str
    """Its system prompt."""
    repair: Callable[[str, str], str]
    """(observation, reply) -> the one turn in the reply; raises ValueError, with what would be right, if there
    is none."""
    around: Callable[[Player], Player] = lambda player: player
    """Wraps the player, to take the turns that need no model."""


class Decision(NamedTuple):
    """A point where a seat has to decide, in a game small enough that all of them can be listed."""

    seat: str
    observations: list[str]
    """What the seat has read, turn by turn; one more than `turns`."""
    turns: list[str]
    """What it has said."""
    options: list[str]
    """The turns that it may take."""


class Taskset(ABC):
    """Where a game's tasks come from, and what is known about the game. Only `tasks` and `load` are needed.

    A game's module makes one: `taskset(parameters, seed, variant)`.
    """

    seats: tuple[str, ...]
    """The seats of its games, in the order in which they move first."""
    study: str = "accuracy"
    """The name of the study that judges it; see `slim_rl.studies`."""
    pass_reward: float = 1.0
    """The least reward of a solved task."""
    opponents: Sequence[str] = ()
    """In a game with winners, players without a model that every model is measured against."""
    rules: Mapping[str, Sequence[str]] = {}
    """In a game with winners where a simple rule may be all that a model learns: by seat, players without a model
    that follow a rule. Their names begin with `rule-` and say which. They meet the opponents in the same games as the
    trained model, and the report says whether that beats the best of them."""

    def __init__(self, parameters: Any, seed: int, variant: str = ""):
        self.parameters, self.seed = parameters, seed

    @property
    def words(self) -> Sequence[str]:
        """Where a tokenizer made for this game's language should cut, and nowhere else; with none of them it cuts
        between all words. A move that is one token is one decision."""
        return ()

    @abstractmethod
    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        """`count` tasks; the same for the same parameters, seed and purpose."""

    @abstractmethod
    def load(self, task: Task) -> Game:
        """The game of a task, ready to be played. Raises ValueError, KeyError or TypeError if it is damaged."""

    def check(self, task: Task) -> None:
        """Raises ValueError, KeyError or TypeError if a task is damaged. Every task of a file is checked, so a game
        that is slow to load checks in another way."""
        self.load(task)

    def demonstrate(self, task: Task, seat: str) -> Demonstration | None:
        """Legal play of `seat` in the game of a task, the same for the same task: a tiny model is made from it, a
        checkpoint may be warmed up with it. None if the game cannot be imitated."""
        return None

    def player(self, name: str, game: Any, seat: str, seed: int) -> Player:
        """A player of `seat` without a model, by name.

        Raises:
            ValueError: there is no player of this name; the sentence says which there are.
        """
        raise ValueError(
            f"it has no player {name!r}, nor any other one without a model; there are policy, checkpoint:PATH and service:NAME"
        )

    def chat_rules(self, seat: str) -> ChatRules | None:
        """What a chat model in this seat is told, and what of its replies is a turn. None if it cannot take it."""
        return None

    def decisions(self) -> list[Decision]:
        """Every decision of a game that can be solved exactly; none of any other game."""
        return []

    def solve(self, probabilities: Sequence[Sequence[float]]) -> dict[str, float]:
        """What a policy is worth, exactly, in the game's own units, by name (`exploitability`, ...).

        Args:
            probabilities: for each of `decisions()`, of each of its options, in order; each sums to 1.
        """
        return {}
