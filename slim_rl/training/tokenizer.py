"""A tokenizer for a small world: every word or phrase that occurs there is one token.

Text is cut into words, integers and signs, each with the space before it, and no token spans two words. A tag like
"[message]" and an ending like "'s" are words too. Or, for a game that names the places, it is cut there, at integers and
after lines alone, so that a move is one token. What the corpus does not have falls back to bytes, so every text has
tokens. The chat markers are Qwen's, so Qwen's renderer fits.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from slim_rl.core.game import Demonstration
from slim_rl.players.renderer import Renderer

_MARKERS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>",
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
]  # fmt: skip
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_WORD = r" ?\[[a-z]+\]|'[a-z]+| ?\p{L}+| ?\d+| ?[^\p{L}\d\s]+|\n+|\s"
_WORD_SCORE, _BYTE_SCORE = -1.0, -100.0  # a word always beats its spelling in bytes
_LARGEST = 100
"""Integers up to this one, and to the largest in the corpus, are one token each. Longer ones are made of those: a small
model learns to copy a token only after it has seen it many times."""


def small_tokenizer(corpus: Iterable[str], words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Build the tokenizer.

    Args:
        corpus: texts as they will be encoded, chat headers included.
        words: where to cut; without any, between all words.
    """
    cut = "|".join(map(re.escape, words))
    phrase = rf"\d+|(?:{cut})(?:(?!{cut})[^\d\n])*\n?" if cut else _WORD
    split = pre_tokenizers.Split(Regex(phrase), "isolated")
    pieces = {piece for text in set(corpus) for piece, _ in split.pre_tokenize_str(text)}
    integers = [int(piece) for piece in pieces if piece.strip().isdecimal()]
    numbers = [str(n) for n in range(min(max(integers, default=0), _LARGEST) + 1)]
    numbers += [] if cut else [f" {n}" for n in numbers]
    others = sorted(piece for piece in pieces if not piece.strip().isdecimal())
    vocabulary = [(marker, 0.0) for marker in _MARKERS]
    vocabulary += [(piece, _WORD_SCORE) for piece in [*numbers, *others]]
    vocabulary += [(byte, _BYTE_SCORE) for byte in _BYTES]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=_MARKERS,
    )


def chat_corpus(demonstrations: Iterable[Demonstration]) -> set[str]:
    """The text between markers when the demonstrations are rendered, with tools, their calls and results; in the
    pieces in which the renderer encodes it."""
    spelling = small_tokenizer(())
    encode, encoded = spelling.encode, set()

    def record(text: str, **options: Any) -> list[int]:
        encoded.add(text)
        return encode(text, **options)

    spelling.encode = record  # type: ignore[method-assign]
    renderer = Renderer(spelling, thinking=False)
    for demonstration in demonstrations:
        renderer.opening(demonstration.read(0), demonstration.tools)
        for i in range(1, len(demonstration.observations)):
            renderer.continuation(demonstration.read(i))
        encoded.update((*demonstration.turns, *filter(None, demonstration.closings)))
    marker = re.compile("|".join(map(re.escape, _MARKERS)))
    return {piece for text in encoded for piece in marker.split(text) if piece}
