"""Turns messages into tokens and sampled tokens into messages.

What was sampled is never rendered again. What follows a closed turn does not depend on the turn, so the checkpoint's
format is asked what follows another one. It never sees sampled tokens, which may be malformed in any way.
"""

import json
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from slim_rl.core.errors import UserError
from slim_rl.core.message import Message, Tool, ToolCall, in_thought, without_thoughts
from slim_rl.players.config import ModelConfig
from slim_rl.players.formats import CUT, Calls, Cutting, chat_format, markers

_WRITTEN_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_OPENINGS = 64  # cached; the episodes of a group share theirs


Heard = tuple[tuple[str, str, tuple[str, ...]], ...]
"""Messages as (role, text, tool calls as JSON), with the markers in them cut."""


class Renderer:
    """The messages of a dialogue in a checkpoint's chat format: roles, tools, tool calls and thoughts.

    It keeps every turn as it was sampled, thoughts included. Text that spells a marker (`<|im_end|>`) stays text.

    Args:
        thinking: whether the model may think before it speaks.
        max_tool_tokens: of one tool result; a longer one ends with a sentence that says so. None for no limit.
        system_prompt: a template; see `ModelConfig`. Markers in it are markers, but not in what it is filled with.

    Raises:
        UserError: the tokenizer has no chat template that can be used.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        thinking: bool,
        max_tool_tokens: int | None = None,
        system_prompt: str | None = None,
    ):
        self._tokenizer = tokenizer
        self._format = chat = chat_format(tokenizer, thinking)
        self._max_tool_tokens, self._system_prompt = max_tool_tokens, system_prompt
        self._cutting = Cutting(tokenizer)
        marker_ids = markers(tokenizer)
        self._markers = frozenset(marker_ids.values())
        self._marker = re.compile("|".join(map(re.escape, marker_ids)))
        self._think, self._think_end = marker_ids.get("<think>"), marker_ids.get("</think>")
        around: tuple[int | None, int | None] = (chat.calls and chat.calls.markers) or (None, None)
        self._call, self._call_end = around
        self.stop_token_ids = chat.stop_token_ids
        """A turn ends with one of these. The first one closes a turn that was cut."""
        self._opening = lru_cache(_OPENINGS)(self._render)

    @cached_property
    def _begun(self) -> bool:
        """Whether the prompt begins a thought."""
        prompt = self._decode(self._format.opening([{"role": "user", "content": "Hello"}]))
        return in_thought(prompt.rpartition("Hello")[2])

    @cached_property
    def call_token_ids(self) -> tuple[int, ...]:
        """Every tool call has one of these in its beginning."""
        if self._call is not None:
            return (self._call,)
        vocabulary = self._tokenizer.get_vocab() if self._format.calls else {}
        return tuple(sorted(number for token, number in vocabulary.items() if "{" in token))

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """A dialogue that begins with `messages`; the policy speaks next.

        Raises:
            UserError: there are tools, but the chat template has none; or it refuses the dialogue.
        """
        return list(self._opening(self._heard(messages), tuple(map(self.spec, tools))))

    def continuation(self, messages: Sequence[Message]) -> list[int]:
        """What follows a closed turn of the policy when it reads `messages` next.

        Raises:
            UserError: the chat template refuses the dialogue.
        """
        return self._format.following(_dicts(self._heard(messages)))

    def turn(self, text: str) -> list[int]:
        """A turn of the policy as it would be sampled, closed. Markers in `text` are markers here; a call is written as
        `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, whatever the checkpoint's own way."""
        if (calls := self._format.calls) and calls.markers is None:
            text = _WRITTEN_CALL.sub(lambda found: _rewritten(found[1], calls), text)
        return [*self._tokenizer.encode(text, add_special_tokens=False), self.stop_token_ids[0]]

    def beginning(self, texts: tuple[str, ...]) -> tuple[int, ...]:
        """The tokens that all of these turns begin with, cut as the model reads whole turns."""
        shared = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*map(self.turn, texts), strict=False))
        return tuple(first for first, *_ in shared)

    def text(self, token_id: int) -> str:
        """What one token says by itself."""
        return self._decode([token_id])

    def parse(self, token_ids: Sequence[int]) -> Message:
        """A sampled turn as others read it: its text without markers and thoughts, and every attempted tool call.

        A thought begins in the prompt, or with a marker, which may be spelled; see `without_thoughts`.
        Where a call has no markers, JSON that is one is a call, and anything else is text.
        """
        stop = next((i for i, token in enumerate(token_ids) if token in self.stop_token_ids), len(token_ids))
        ids, place = list(token_ids[:stop]), 0
        if self._begun and self._think is not None:
            ids.insert(0, self._think)
        text: list[int] = []
        calls: list[ToolCall] = []
        last_end = max((i for i, token in enumerate(ids) if token == self._think_end), default=-1)
        while place < len(ids):
            if ids[place] == self._think:
                # After its end marker, else at the next tool call, as inference engines read it.
                ends = place < last_end
                place = _find(ids, self._think_end if ends else self._call, place) + ends
            elif ids[place] == self._think_end:
                text, calls, place = [], [], place + 1
            elif ids[place] == self._call:
                end = _find(ids, self._call_end, place)
                calls.append(_call(self._decode(ids[place + 1 : end]), closed=end < len(ids)))
                place = end + 1
            else:
                if ids[place] not in self._markers:
                    text.append(ids[place])
                place += 1
        spoken = without_thoughts(self._decode(text), self._begun and self._think is None)
        if (form := self._format.calls) and form.markers is None and f'"{form.arguments}"' in spoken:
            call = _call(spoken, closed=True, arguments=form.arguments)
            if call.status == "ok":
                return Message("assistant", "", (call,))
        return Message("assistant", spoken, tuple(calls))

    def can_say(self, text: str, max_tokens: int) -> bool:
        """Whether a turn of at most `max_tokens` is read as exactly `text`."""
        ids = self.turn("</think>\n\n" * self._begun + text)[:-1]
        return len(ids) <= max_tokens and self.parse(ids).written == text

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)).strip()

    def _render(self, heard: Heard, specs: tuple[str, ...]) -> tuple[int, ...]:
        tools: list[Any] = list(map(json.loads, specs))
        if tools and self._format.calls is None:
            names = ", ".join(tool["function"]["name"] for tool in tools)
            raise UserError(
                f"The game has tools ({names}), but the checkpoint's chat template has none, or writes calls in a way "
                "that is not known here; take a checkpoint of Qwen2.5, Qwen3 or Llama 3, or give a template in model.chat_template."
            )
        if (template := self._system_prompt) is not None:
            own = heard[0][1] if heard and heard[0][0] == "system" else ""
            fillings = {"{game}": own, "{tools}": "\n".join(specs)}
            text = re.sub(r"\{game\}|\{tools\}", lambda found: fillings[found[0]], template)
            heard = (("system", text, ()), *(message for message in heard if message[0] != "system"))
            tools = [] if "{tools}" in template else tools
        return tuple(self._format.opening(_dicts(heard), tools))

    def _heard(self, messages: Sequence[Message]) -> Heard:
        return tuple(
            (m.role, self._shortened(m.role, self._cut(m.text)), tuple(self._cut(_written(c)) for c in m.tool_calls))
            for m in messages
        )

    def _shortened(self, role: str, text: str) -> str:
        """`text`, cut if it is a tool's result of too many tokens."""
        limit = self._max_tool_tokens
        if role != "tool" or limit is None or len(text.encode()) <= limit:  # no token is shorter than a byte
            return text
        ids = self._cutting.encode(text, add_special_tokens=False)
        if len(ids) <= limit:
            return text
        kept = str(self._tokenizer.decode(ids[:limit], skip_special_tokens=False)).rstrip("\ufffd")
        return self._cut(kept) + f"\n[The result is cut: {limit} of its {len(ids)} tokens are shown.]"

    def spec(self, tool: Tool) -> str:
        """A tool as JSON."""
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return self._cut(json.dumps({"type": "function", "function": function}, ensure_ascii=False))

    def _cut(self, text: str) -> str:
        """`text` with a cut in every marker that it spells, so that it is not encoded as one."""
        return self._marker.sub(lambda found: found[0][0] + CUT + found[0][1:], text.replace(CUT, "\ufffd"))


def renderer_of(model: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> Renderer:
    """The renderer of the model that is trained; raises as `Renderer`. The tokenizer gets `model.chat_template`."""
    if model.chat_template:
        tokenizer.chat_template = model.chat_template
    return Renderer(tokenizer, model.thinking, model.tool_tokens, model.system_prompt)


def _dicts(heard: Heard) -> list[Any]:
    dicts: list[Any] = []
    for role, text, calls in heard:
        functions = [{"type": "function", "function": json.loads(call)} for call in calls]
        dicts.append({"role": role, "content": text} | ({"tool_calls": functions} if functions else {}))
    return dicts


def _written(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _find(ids: list[int], token: int | None, start: int) -> int:
    """The next place of `token`; the end without one."""
    return next((i for i in range(start, len(ids)) if ids[i] == token), len(ids))


def _rewritten(raw: str, calls: Calls) -> str:
    """A call whose arguments have the checkpoint's own name."""
    try:
        return json.dumps(
            {calls.arguments if key == "arguments" else key: value for key, value in json.loads(raw).items()}
        )
    except (AttributeError, ValueError):
        return raw


def _call(raw: str, closed: bool, arguments: str = "arguments") -> ToolCall:
    if not closed:
        return ToolCall("", status="unclosed_block", raw=raw)
    try:
        written = json.loads(raw)
        # Python also reads NaN and unpaired surrogates, which no tool and no shard can take.
        json.dumps(written, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return ToolCall("", status="invalid_json", raw=raw)
    name = written.get("name") if isinstance(written, dict) else None
    if not name or not isinstance(name, str):
        return ToolCall("", status="missing_name", raw=raw)
    values = written.get(arguments, {})
    if not isinstance(values, dict):
        return ToolCall(name, status="invalid_json", raw=raw)
    return ToolCall(name, values, raw=raw)
