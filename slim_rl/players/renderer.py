"""Turns messages into tokens and sampled tokens into messages: a thin layer over the renderers library.

What was sampled is never rendered again. What follows a closed turn does not depend on the turn, so the library is
asked what follows an empty one. It never sees sampled tokens, which may be malformed in any way.
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from renderers import Qwen3RendererConfig, create_renderer
from transformers import PreTrainedTokenizerBase

from slim_rl.core.errors import UserError
from slim_rl.core.message import Message, Tool, ToolCall, heard

_MARKERS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
            "<tool_response>", "</tool_response>")  # fmt: skip
_CUT = "\ufdd0"  # a code point that no text may contain
_SPELLED_THOUGHT = re.compile(r"<think>.*?(</think>|$)", re.DOTALL)
_OPENINGS = 64  # cached; the episodes of a group share theirs
_KEPT, _SHORT = 8192, 1000  # cached texts, and their longest: tool output is long and rarely repeated


Heard = tuple[tuple[str, str], ...]
"""Messages as (role, text with its markers cut)."""


class Renderer:
    """Qwen3's chat format: roles, tools, tool calls and thoughts.

    It keeps every turn as it was sampled, thoughts included. Text that spells a marker (`<|im_end|>`) stays text.

    Args:
        thinking: whether the model may think; if not, each of its turns begins with an empty thought.
        max_tool_tokens: of one tool result; a longer one ends with a sentence that says so. None for no limit.
        system_prompt: a template; see `ModelConfig`. Markers in it are markers, but not in what it is filled with.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        thinking: bool,
        max_tool_tokens: int | None = None,
        system_prompt: str | None = None,
    ):
        config = Qwen3RendererConfig(enable_thinking=thinking, thinking_retention="all")
        self._tokenizer = tokenizer
        self._max_tool_tokens, self._system_prompt = max_tool_tokens, system_prompt
        self._cutting = _Cutting(tokenizer)
        self._library = create_renderer(self._cutting, config)
        markers = _markers(tokenizer)
        self._markers = frozenset(markers.values())
        self._marker = re.compile("|".join(map(re.escape, markers)))
        self._think, self._think_end = markers["<think>"], markers["</think>"]
        self._call, self._call_end = markers["<tool_call>"], markers["</tool_call>"]
        self.stop_token_ids = tuple(self._library.get_stop_token_ids())
        """A turn ends with one of these. The first one closes a turn that was cut."""
        self.call_token_ids = (self._call,)
        """What every tool call begins with."""
        self._opening = lru_cache(_OPENINGS)(self._render)
        self._empty = self.opening(heard(""))

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """A dialogue that begins with `messages`; the policy speaks next.

        Raises:
            UserError: a message has images.
        """
        return list(self._opening(self._heard(messages), tuple(map(self.spec, tools))))

    def continuation(self, messages: Sequence[Message]) -> list[int]:
        """What follows a closed turn of the policy when it reads `messages` next.

        Raises:
            UserError: a message has images.
        """
        before = [*self._empty, self.stop_token_ids[0]]
        following = _dicts(self._heard(messages))
        bridged = self._library.bridge_to_next_turn(list(self._empty), before[-1:], following)
        if bridged is None or bridged.token_ids[: len(before)] != before:
            raise RuntimeError("The renderer cannot continue a dialogue without rendering it again.")
        return bridged.token_ids[len(before) :]

    def turn(self, text: str) -> list[int]:
        """A turn of the policy as it would be sampled, closed. Markers in `text` are markers here."""
        return [*self._tokenizer.encode(text, add_special_tokens=False), self.stop_token_ids[0]]

    def parse(self, token_ids: Sequence[int]) -> Message:
        """A sampled turn as others read it: its text without markers and thoughts, and every attempted tool call.

        A thought is what stands between its markers, as tokens or spelled, and all that comes before a lone end marker.
        """
        stop = next((i for i, token in enumerate(token_ids) if token in self.stop_token_ids), len(token_ids))
        ids, place = list(token_ids[:stop]), 0
        text: list[int] = []
        calls: list[ToolCall] = []
        while place < len(ids):
            if ids[place] == self._think:
                place = self._end_of_thought(ids, place)
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
        spoken = _SPELLED_THOUGHT.sub("", self._decode(text)).rpartition("</think>")[2]
        return Message("assistant", spoken.strip(), tuple(calls))

    def _end_of_thought(self, ids: list[int], place: int) -> int:
        """Where a thought ends: after its end marker, else at the next tool call, as inference engines read it."""
        end = _find(ids, self._think_end, place)
        return end + 1 if end < len(ids) else _find(ids, self._call, place)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)).strip()

    def _render(self, heard: Heard, specs: tuple[str, ...]) -> tuple[int, ...]:
        tools = list(map(json.loads, specs)) or None
        if (template := self._system_prompt) is not None:
            own = heard[0][1] if heard and heard[0][0] == "system" else ""
            fillings = {"{game}": own, "{tools}": "\n".join(specs)}
            text = re.sub(r"\{game\}|\{tools\}", lambda found: fillings[found[0]], template)
            heard = (("system", text), *(message for message in heard if message[0] != "system"))
            tools = None if "{tools}" in template else tools
        return tuple(self._library.render_ids(_dicts(heard), tools=tools, add_generation_prompt=True))

    def _heard(self, messages: Sequence[Message]) -> Heard:
        if any(message.images for message in messages):
            raise UserError("A message has an image, but the renderer of this model carries text alone.")
        return tuple((message.role, self._shortened(message.role, self._cut(message.text))) for message in messages)

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
        return self._marker.sub(lambda found: found[0][0] + _CUT + found[0][1:], text.replace(_CUT, "\ufffd"))


class _Cutting:
    """A tokenizer, as the library uses it, that encodes what is before and after a cut separately."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self.unk_token_id = tokenizer.unk_token_id
        self.convert_tokens_to_ids = tokenizer.convert_tokens_to_ids
        self.decode = tokenizer.decode

        self._encode_short = lru_cache(_KEPT)(self._encode)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        encode = self._encode_short if len(text) <= _SHORT else self._encode
        return list(encode(text, add_special_tokens))

    def _encode(self, text: str, special: bool) -> tuple[int, ...]:
        parts = text.split(_CUT)
        return tuple(i for part in parts for i in self._tokenizer.encode(part, add_special_tokens=special))


def renderer_for(
    tokenizer: PreTrainedTokenizerBase,
    thinking: bool,
    max_tool_tokens: int | None = None,
    system_prompt: str | None = None,
) -> Renderer:
    """The renderer of a checkpoint; see `Renderer`.

    Raises:
        UserError: the tokenizer lacks one of Qwen3's markers, or the checkpoint's chat template is not Qwen3's.
    """
    if missing := [marker for marker in _MARKERS if marker not in _markers(tokenizer)]:
        raise UserError(
            f"The tokenizer lacks Qwen3's chat markers {', '.join(missing)}; take a checkpoint of the Qwen3 family."
        )
    renderer = Renderer(tokenizer, thinking, max_tool_tokens, system_prompt)
    if tokenizer.chat_template and not _fits(Renderer(tokenizer, thinking), tokenizer, thinking):
        other = _fits(Renderer(tokenizer, not thinking), tokenizer, not thinking)
        advice = f"set model.thinking to {str(not thinking).lower()}" if other else "take one of Qwen3 itself"
        raise UserError(
            f"The checkpoint's chat template begins a dialogue in another way than Qwen3's with model.thinking "
            f"{str(thinking).lower()}; {advice}."
        )
    return renderer


def _fits(renderer: Renderer, tokenizer: PreTrainedTokenizerBase, thinking: bool) -> bool:
    """Whether the renderer begins a dialogue as the checkpoint's own template does, with tools and without."""
    tool = Tool("probe", "A tool.", {"type": "object", "properties": {"text": {"type": "string"}}})
    for tools in ((), (tool,)):
        own = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hello"}],
            tools=[json.loads(renderer.spec(tool)) for tool in tools] or None,
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=thinking,
        )
        if tokenizer.decode(renderer.opening(heard("Hello"), tools), skip_special_tokens=False) != own:
            return False
    return True


def _markers(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The tokens that the tokenizer finds in any text, such as `<|im_end|>`, and their ids."""
    added = tokenizer.get_added_vocab()
    return {text: token for text, token in added.items() if text.startswith("<") and text.endswith(">")}


def _dicts(heard: Heard) -> list[Any]:
    return [{"role": role, "content": text} for role, text in heard]


def _find(ids: list[int], token: int, start: int) -> int:
    """The next place of `token`; the end without one."""
    return next((i for i in range(start, len(ids)) if ids[i] == token), len(ids))


def _call(raw: str, closed: bool) -> ToolCall:
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
    arguments = written.get("arguments", {})
    if not isinstance(arguments, dict):
        return ToolCall(name, status="invalid_json", raw=raw)
    return ToolCall(name, arguments, raw=raw)
