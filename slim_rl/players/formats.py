"""How a checkpoint writes a dialogue as tokens.

Qwen3's format is the renderers library's, because Qwen3's own template drops earlier thoughts. Any other is read off the
tokenizer's chat template. The library also has Llama 3.2; reading its template gives the same tokens.
"""

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from jinja2 import TemplateError
from renderers import Qwen3RendererConfig, create_renderer
from transformers import PreTrainedTokenizerBase

from slim_rl.core.errors import UserError

CUT = "\ufdd0"  # a code point that no text may contain
_QWEN3 = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
          "<tool_response>", "</tool_response>")  # fmt: skip
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|eom_id|>")
"""What checkpoints may end a turn with, beside what their templates write."""
_FIXED_DATE = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}"
"""Put before a template: one that tells today's date would render another opening tomorrow. The date is the one that
Llama 3's templates fall back to."""
_KEPT, _SHORT = 8192, 1000  # cached texts, and their longest: tool output is long and rarely repeated

_ASKED = {"role": "user", "content": "Hello"}
_SAID = {"role": "assistant", "content": "Well met."}
_THOUGHT = "Greet them first."
_SAID_WITH_THOUGHT = {"role": "assistant", "content": f"<think>\n{_THOUGHT}\n</think>\n\nWell met."}
_ASKED_BEFORE = (
    [_ASKED],
    [{"role": "system", "content": "Be kind."}, _ASKED],
    [_ASKED, {"role": "user", "content": "And you?"}],
)
"""What a game may open a dialogue with."""
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}
_CALLED = {"name": "probe", "arguments": {"text": "it"}}

Dialogue = Sequence[Mapping[str, Any]]
"""Messages with `role` and `content`, whose markers have a `CUT`."""
Tools = Sequence[Mapping[str, Any]]
"""In OpenAI's form."""


@dataclass(frozen=True)
class Calls:
    """How tool calls are written: as JSON with `name` and `arguments`, or what the format calls them."""

    arguments: str = "arguments"
    markers: tuple[int, int] | None = None
    """The tokens around a call; None if the call is the whole turn."""


class Format(Protocol):
    """A checkpoint's chat format."""

    stop_token_ids: tuple[int, ...]
    """The first one closes a turn."""
    calls: Calls | None
    """None: no tools."""

    def opening(self, messages: Dialogue, tools: Tools = ()) -> list[int]:
        """A dialogue that begins with `messages`; the policy speaks next."""

    def following(self, messages: Dialogue) -> list[int]:
        """What stands between the end of a turn of the policy and its next turn."""


def chat_format(tokenizer: PreTrainedTokenizerBase, thinking: bool) -> Format:
    """The format of a checkpoint.

    Args:
        thinking: whether the model may think before it speaks.

    Raises:
        UserError: the tokenizer has no chat template, or one that cannot be continued turn by turn.
    """
    if not isinstance(tokenizer.model_max_length, int | float):
        raise UserError(
            f"model_max_length is {reprlib.repr(tokenizer.model_max_length)} in tokenizer_config.json, not a number."
        )
    marker_ids, encoder = markers(tokenizer), Cutting(tokenizer)
    if all(marker in marker_ids for marker in _QWEN3):
        qwen = Qwen3Format(encoder, marker_ids, thinking)
        if not tokenizer.chat_template or _fits(qwen, tokenizer, thinking):
            return qwen
    if not tokenizer.chat_template:
        raise UserError(
            "The checkpoint's tokenizer has no chat template, so it is not known how a dialogue is written for it; take "
            "one that was trained on dialogues (often called Instruct)."
        )
    return TemplateFormat(tokenizer, encoder, marker_ids, thinking)


def markers(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The tokens that the tokenizer finds in any text, such as `<|im_end|>`, and their ids."""
    added = {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    added |= {text: n for text, n in tokenizer.get_added_vocab().items() if text[:1] + text[-1:] == "<>"}
    return {text: number for text, number in added.items() if len(text) > 1}


class Cutting:
    """A tokenizer, as the library uses it, that encodes what is before and after a cut separately."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self.unk_token_id = tokenizer.unk_token_id
        self.convert_tokens_to_ids = tokenizer.convert_tokens_to_ids
        self.decode = tokenizer.decode
        self._encode_short = lru_cache(_KEPT)(self._encode)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        encode = self._encode_short if len(text) <= _SHORT else self._encode
        return list(encode(text, add_special_tokens))

    def _encode(self, text: str, special: bool) -> tuple[int, ...]:
        parts = text.split(CUT)
        return tuple(i for part in parts for i in self._tokenizer.encode(part, add_special_tokens=special))


class Qwen3Format:
    """Qwen3's: thoughts stay in the dialogue as they were sampled."""

    def __init__(self, encoder: Cutting, marker_ids: Mapping[str, int], thinking: bool):
        config = Qwen3RendererConfig(enable_thinking=thinking, thinking_retention="all")
        self._library: Any = create_renderer(encoder, config)
        self.stop_token_ids: tuple[int, ...] = tuple(self._library.get_stop_token_ids())
        self.calls: Calls | None = Calls(markers=(marker_ids["<tool_call>"], marker_ids["</tool_call>"]))
        self._empty = self.opening([{"role": "user", "content": ""}])

    def opening(self, messages: Dialogue, tools: Tools = ()) -> list[int]:
        return list(self._library.render_ids(messages, tools=list(tools) or None, add_generation_prompt=True))

    def following(self, messages: Dialogue) -> list[int]:
        before = [*self._empty, self.stop_token_ids[0]]
        bridged = self._library.bridge_to_next_turn(list(self._empty), before[-1:], messages)
        if bridged is None or bridged.token_ids[: len(before)] != before:
            raise RuntimeError("The renderer cannot continue a dialogue without rendering it again.")
        return list(bridged.token_ids[len(before) :])


class TemplateFormat:
    """What a chat template does.

    A dialogue opens with what the template writes up to a turn of the model. What follows a turn is what it writes after
    the end of one, which must not depend on the turn.

    Raises:
        UserError: the template, or the tokenizer, does not allow this.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, encoder: Cutting, marker_ids: Mapping[str, int], thinking: bool
    ):
        self._tokenizer, self._encoder, self._thinking = tokenizer, encoder, thinking
        begun = self._text([_ASKED]) + _SAID["content"]
        after = self._text([_ASKED, _SAID, _ASKED]).partition(begun)[2]
        self._end = max((text for text in marker_ids if after.startswith(text)), key=len, default="")
        self._before = begun + self._end
        ends = (self._end, str(tokenizer.eos_token), *_ENDS)
        self.stop_token_ids: tuple[int, ...] = tuple(
            dict.fromkeys(marker_ids[text] for text in ends if text in marker_ids)
        )
        if not (self._end and self._keeps_text() and self._keeps_turns()):
            raise self._unusable()
        self.calls = self._read_calls(marker_ids)

    def opening(self, messages: Dialogue, tools: Tools = ()) -> list[int]:
        return self._encoder.encode(self._text(messages, tools))

    def following(self, messages: Dialogue) -> list[int]:
        whole = self._text([_ASKED, _SAID, *messages])
        if not whole.startswith(self._before):
            raise self._unusable()
        return self._encoder.encode(whole.removeprefix(self._before))

    def _text(self, messages: Dialogue, tools: Tools = (), ended: bool = False) -> str:
        """A dialogue that has ended, or in which it is the model's turn."""
        specs: Any = list(tools) or None
        try:
            written = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=specs,
                chat_template=_FIXED_DATE + self._tokenizer.get_chat_template(tools=specs),
                add_generation_prompt=not ended,
                enable_thinking=self._thinking,
                tokenize=False,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise UserError(
                f"The checkpoint's chat template cannot render the dialogue: {str(error).rstrip('.')}."
            ) from error
        return str(written)

    def _unusable(self) -> UserError:
        return UserError(
            "The checkpoint's chat template cannot be used: a dialogue that is rendered turn by turn is not the one that "
            f"it renders at once with model.thinking {str(self._thinking).lower()}. Take a checkpoint of Qwen2.5, Qwen3, "
            "Llama 3 or another whose template leaves past turns as they were said."
        )

    def _said(self, dialogue: Dialogue, tools: Tools = ()) -> str:
        """The last turn of a dialogue as the template writes it."""
        written = self._text(dialogue, tools, ended=True).removeprefix(self._text(dialogue[:-1], tools))
        return written.rpartition(self._end)[0]

    def _continues(self, dialogue: Dialogue, tools: Tools = ()) -> bool:
        """Whether a dialogue that is taken turn by turn has the tokens of the whole one."""
        turns = [n for n, message in enumerate(dialogue) if message["role"] == "assistant"]
        ids = self.opening(dialogue[: turns[0]], tools)
        for turn, after in zip(turns, [*turns[1:], len(dialogue)], strict=True):
            ids += self._encoder.encode(self._said(dialogue[: turn + 1], tools) + self._end)
            ids += self.following(dialogue[turn + 1 : after])
        return ids == self._encoder.encode(self._text(dialogue, tools))

    def _keeps_turns(self) -> bool:
        """Whether past turns and their thoughts stay as they were, whatever a dialogue opens with. The template may refuse
        an opening, but not the first one: the game that needs it is told."""
        for said in (_SAID, _SAID_WITH_THOUGHT):
            for asked in _ASKED_BEFORE:
                dialogue = [*asked, said, _ASKED, said, _ASKED]
                try:
                    text = self._text(dialogue)
                except UserError:
                    if asked is _ASKED_BEFORE[0]:
                        raise
                    continue
                if text.count(_THOUGHT) != 2 * (_THOUGHT in said["content"]) or not self._continues(dialogue):
                    return False
        return True

    def _keeps_text(self) -> bool:
        """Whether a marker that is only spelled stays the text that it is."""
        ids = self._encoder.encode(f"Hello {self._end[0]}{CUT}{self._end[1:]}")
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)) == f"Hello {self._end}"

    def _read_calls(self, marker_ids: Mapping[str, int]) -> Calls | None:
        """How the template writes a call; None if it has no tools, or writes calls in another way than `Calls`."""
        call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": _CALLED}]}
        results = [{"role": "tool", "content": text} for text in ("7", "8")]
        try:
            if self._text([_ASKED], [_TOOL]) == self._text([_ASKED]):
                return None
            if not self._continues([_ASKED, call, *results, call, *results, _SAID, _ASKED], [_TOOL]):
                return None
            said = self._said([_ASKED, call], [_TOOL]).strip()
            begin, end = "<tool_call>", "</tool_call>"
            marked = said.startswith(begin) and begin in marker_ids and end in marker_ids
            around = (marker_ids[begin], marker_ids[end]) if marked else None
            written = json.loads(said.removeprefix(begin).removesuffix(end) if marked else said)
            [name] = (key for key, value in written.items() if value == _CALLED["name"])
            [arguments] = (key for key, value in written.items() if value == _CALLED["arguments"])
        except (UserError, AttributeError, ValueError):
            return None
        return Calls(arguments, around) if name == "name" else None


def _fits(qwen: Qwen3Format, tokenizer: PreTrainedTokenizerBase, thinking: bool) -> bool:
    """Whether Qwen3's format begins a dialogue as the checkpoint's own template does, with tools and without."""
    options: Any = dict(add_generation_prompt=True, tokenize=False, enable_thinking=thinking)
    for tools in ((), (_TOOL,)):
        try:
            own = tokenizer.apply_chat_template([_ASKED], tools=list(tools) or None, **options)
        except (TemplateError, TypeError, ValueError):  # `TemplateFormat` says what is wrong
            return False
        if tokenizer.decode(qwen.opening([_ASKED], tools), skip_special_tokens=False) != own:
            return False
    return True
