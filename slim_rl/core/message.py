"""What seats say and hear: messages with a role, text and tool calls."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
CallStatus = Literal["ok", "invalid_json", "unclosed_block", "missing_name", "unknown_tool"]
"""Whether a tool call can be run. Every status but `ok` is the caller's mistake."""


@dataclass(frozen=True)
class Tool:
    """A function that a seat may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments."""


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    status: CallStatus = "ok"
    raw: str = ""
    """The call as the model wrote it."""


@dataclass(frozen=True)
class Sampled:
    """The numbers of a turn that a model of ours sampled."""

    prompt_tokens: int
    tokens: int
    cut: bool
    """Whether it reached its limit of tokens."""
    logprobs: tuple[tuple[str, float], ...] = ()
    """The text of each token with its log-prob, where the constraint asks for them."""


@dataclass(frozen=True)
class Message:
    """A message of a dialogue.

    What a seat hears has the role `user`, or `tool` for the result of a call; results come in the order of the
    calls. What a seat says has the role `assistant`.
    """

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    sampled: Sampled | None = field(default=None, compare=False, repr=False)
    """Only while the game is played."""

    @property
    def written(self) -> str:
        """The text with the tool calls as the model wrote them."""
        return "\n".join(filter(None, (self.text, *(call.raw for call in self.tool_calls))))


_OPENS = r"<(?:\w+:)?(?:think(?:ing)?|[Tt]houghts?)>|\[THINK\]|◁think▷|<\|START_THINKING\|>|<\|begin_of_thought\|>|<\|channel\|>analysis<\|message\|>"
_ENDS = r"</(?:\w+:)?(?:think(?:ing)?|[Tt]houghts?)>|\[/THINK\]|◁/think▷|<\|END_THINKING\|>|<\|end_of_thought\|>|<\|channel\|>final<\|message\|>"
_THOUGHT = re.compile(rf"(?:{_OPENS}).*?(?:{_ENDS}|\Z)", re.DOTALL)
_END = re.compile(_ENDS)


def without_thoughts(text: str, begun: bool = False) -> str:
    """What a model says: a thought is what stands between its markers, what follows one that does not end, and all before a
    lone end.

    Args:
        begun: whether the prompt has begun the thought.
    """
    return _END.split(_THOUGHT.sub("", "<think>" * begun + text))[-1].strip()


def in_thought(prompt: str) -> bool:
    """Whether a prompt has begun a thought that it does not end."""
    return any(not _END.search(found[0]) for found in _THOUGHT.finditer(prompt))


def heard(text: str) -> tuple[Message, ...]:
    """An observation that is text alone."""
    return (Message("user", text),)


def said(text: str) -> Message:
    """A turn that is text alone."""
    return Message("assistant", text)


def text_of(messages: Sequence[Message]) -> str:
    """The texts of an observation, a line each."""
    return "\n".join(message.text for message in messages)
