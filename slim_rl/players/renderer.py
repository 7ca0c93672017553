"""A chat format: what is said, as tokens and back. A thin layer over the renderers library.

What was sampled is never rendered again. What follows a closed turn does not depend on what was said in
it, so the renderer is asked what follows an empty one and never sees sampled tokens, which may be
malformed in any way. And since few things are said very often, answers are kept.
"""

from collections.abc import Sequence
from functools import lru_cache

from renderers import Qwen3RendererConfig, create_renderer
from renderers.base import Renderer
from transformers import PreTrainedTokenizerBase

from slim_rl.errors import UserError

_KEPT = 8192


class ChatFormat:
    """The chat format that belongs to a tokenizer's model family."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, renderer: Renderer):
        self.stop_token_ids = tuple(renderer.get_stop_token_ids())
        """A turn ends with one of these; the first closes a turn that was cut."""
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._empty = tuple(self.opening(""))
        self.opening = lru_cache(_KEPT)(self.opening)  # type: ignore[method-assign]
        self.continuation = lru_cache(_KEPT)(self.continuation)  # type: ignore[method-assign]
        self._content = lru_cache(_KEPT)(self._content)  # type: ignore[method-assign]

    def opening(self, text: str) -> list[int]:
        """A dialogue in which `text` has been heard and the policy is to speak."""
        return self._renderer.render_ids([_heard(text)], add_generation_prompt=True)

    def continuation(self, text: str) -> list[int]:
        """What comes after a closed turn of the policy when `text` is heard next."""
        before = [*self._empty, self.stop_token_ids[0]]
        bridged = self._renderer.bridge_to_next_turn(list(self._empty), before[-1:], [_heard(text)])
        if bridged is None or bridged.token_ids[: len(before)] != before:
            raise RuntimeError("The renderer cannot continue a dialogue without rendering it again.")
        return bridged.token_ids[len(before) :]

    def turn(self, text: str) -> list[int]:
        """A turn of the policy as it would be sampled, closed."""
        return [*self._tokenizer.encode(text, add_special_tokens=False), self.stop_token_ids[0]]

    def content(self, token_ids: Sequence[int]) -> str:
        """What others hear of a sampled turn: no markers, no thoughts."""
        return self._content(tuple(token_ids))

    def _content(self, token_ids: tuple[int, ...]) -> str:
        return self._renderer.parse_response(list(token_ids), prompt_ids=list(self._empty)).content


def qwen3_format(tokenizer: PreTrainedTokenizerBase, thinking: bool) -> ChatFormat:
    """Qwen3's format, keeping every turn as it was sampled, thoughts included.

    Raises:
        UserError: the tokenizer is not one of Qwen's.
    """
    if "<|im_start|>" not in tokenizer.get_vocab():
        raise UserError(
            "The tokenizer does not have Qwen's chat markers (<|im_start|> and others); take a Qwen checkpoint."
        )
    config = Qwen3RendererConfig(enable_thinking=thinking, thinking_retention="all")
    return ChatFormat(tokenizer, create_renderer(tokenizer, config))


def _heard(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
