"""What happened in one game: what was said, by whom, with which tokens, and what it earned."""

from dataclasses import dataclass, field
from typing import Literal

from slim_rl.core.message import Message, text_of

Status = Literal["completed", "truncated", "failed", "aborted"]
"""`truncated`: a limit of turns or tokens was reached. `failed`: through somebody else's fault; it earns
nothing. `aborted`: interrupted by the engine; it can be played on."""


@dataclass
class TokenTrace:
    """The sequence one seat was conditioned on and is trained on, aligned lists of one length.

    `loss_mask` is 1 exactly on sampled tokens; `logprobs` are 0.0 elsewhere.
    """

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def extend(self, token_ids: list[int], logprobs: list[float] | None = None) -> None:
        """Append context, or sampled tokens with their log-probs."""
        self.token_ids += token_ids
        self.loss_mask += [int(logprobs is not None)] * len(token_ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(token_ids)


@dataclass(frozen=True)
class Turn:
    seat: str
    observation: tuple[Message, ...]
    """What the seat read before it spoke."""
    message: Message
    """What it said."""

    @property
    def read(self) -> str:
        """The observation's text."""
        return text_of(self.observation)

    @property
    def text(self) -> str:
        """What was said, tool calls included."""
        return self.message.written


@dataclass
class Episode:
    episode_id: str
    """Unique in a run; the same work has the same id, so a resumed run knows what is done."""
    game_id: str
    """Names the task, so that episodes of the same task can be compared."""
    game: str = ""
    """The name of the game in the parameters: "chess", "cards:bridge"."""
    seating: dict[str, str] = field(default_factory=dict)
    """Who sat in each seat: the policy, a checkpoint or a scripted player, by name."""
    series: str = ""
    """Which series of an evaluation it belongs to; empty in training."""
    arm: str = ""
    """What the series changed for this episode: "forbidden", "given-trained"; empty if nothing."""
    step: int = 0
    """Training steps the policy had behind it."""
    status: Status = "completed"
    error: str = ""
    """Class and message of what went wrong; empty unless the episode failed."""
    dropped: str = ""
    """With SLIME, why it was not trained on: the filter that dropped its group, or "surplus"; empty if it was."""
    turns: list[Turn] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    """Reward of each seat; nothing for an episode that has not ended, or that ended without any reward."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the game reports of the episode; see `Game.metrics`."""
    traces: dict[str, TokenTrace] = field(default_factory=dict)
    """Tokens of the seats that the policy took, to be trained on."""
