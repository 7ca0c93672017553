"""What happened in one game: what was said, by whom, with which tokens, and what it earned."""

from dataclasses import dataclass, field
from typing import Literal

from slim_rl.players.policy import TokenTrace

Status = Literal["completed", "truncated", "failed", "aborted"]
"""`truncated`: a limit of turns or tokens was reached. `failed`: through somebody else's fault; it earns
nothing. `aborted`: interrupted by the engine; it can be played on."""


@dataclass(frozen=True)
class Turn:
    seat: str
    observation: str
    """What the seat read before it spoke."""
    text: str


@dataclass
class Episode:
    episode_id: str
    """Unique in a run; the same work has the same id, so a resumed run knows what is done."""
    game_id: str
    kind: str = ""
    """Which game it was, by its kind's name."""
    seating: dict[str, str] = field(default_factory=dict)
    """Who sat in each seat: the policy, a checkpoint or a scripted player, by the name it has in the report."""
    step: int = 0
    """Training steps the policy had behind it."""
    status: Status = "completed"
    error: str = ""
    """Class and message of what went wrong; empty unless the episode failed."""
    turns: list[Turn] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    """Reward of each seat; nothing for an episode that has not ended."""
    facts: dict[str, float] = field(default_factory=dict)
    """What the game says of the episode; see `Game.facts`."""
    traces: dict[str, TokenTrace] = field(default_factory=dict)
    """Tokens of the seats that the policy took, to be trained on."""
