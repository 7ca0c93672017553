"""A tokenizer for a small world: phrases that recur there are one token each.

Text is cut before and after integers, before given words, and after every line. Each piece that occurs in the
corpus is one token, so a word keeps the phrase that follows it ("Ava Li's score for "). Everything else falls
back to bytes, so every text has tokens. The chat markers are Qwen's, so Qwen's renderer fits.
"""

import re
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from slim_rl.core.game import Demonstration

_MARKERS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>",
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
]  # fmt: skip
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_PHRASE_SCORE, _BYTE_SCORE = -1.0, -100.0  # a phrase always beats its spelling in bytes


def phrase_tokenizer(corpus: Iterable[str], words: Iterable[str]) -> PreTrainedTokenizerFast:
    """Build the tokenizer.

    Args:
        corpus: texts as they will be encoded, chat headers included.
        words: where to cut; without any, at integers and lines alone.
    """
    word = "|".join(map(re.escape, words))
    phrase = rf"(?:{word})(?:(?!{word})[^\d\n])*\n?" if word else r"[^\d\n]+\n?|\n"
    split = pre_tokenizers.Split(Regex(rf"\d+|{phrase}"), "isolated")
    pieces = {piece for text in set(corpus) for piece, _ in split.pre_tokenize_str(text)}
    largest = max((int(piece) for piece in pieces if piece.isdecimal()), default=0)
    phrases = sorted(piece for piece in pieces if not piece.isdecimal())
    numbers = [str(n) for n in range(largest + 1)]
    vocabulary = [(marker, 0.0) for marker in _MARKERS]
    vocabulary += [(piece, _PHRASE_SCORE) for piece in numbers + phrases]
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
    """The text between markers when Qwen's renderer renders the demonstrations."""
    corpus = {"\n", "assistant\n", "\n\n"}
    for shown in demonstrations:
        corpus.update("user\n" + observation for observation in shown.observations)
        corpus.update(shown.turns)
        corpus.update(closing for closing in shown.closings if closing is not None)
    return corpus
