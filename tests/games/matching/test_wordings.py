"""The wordings of questions and answers: all are read, and those kept for evaluation are new sentences of known words."""

import random
import re
from itertools import product

import pytest

from slim_rl.games import game_parameters, load_games
from slim_rl.games.matching.partner import (
    ANSWERS,
    HELD_OUT_ANSWERS,
    HELD_OUT_UNKNOWN,
    QUESTIONS,
    REORDERED_ANSWERS,
    UNKNOWN,
    VAGUE,
    answer,
    question,
)
from slim_rl.games.matching.reader import asked_cells
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer
from slim_rl.training.warmstart import Demonstrations


class Draws:
    """Draws the wording of this number."""

    def __init__(self, number):
        self.choice = lambda wordings: wordings[number]


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_a_partner_reads_every_wording_of_a_question_as_that_question(number):
    for pair in product(range(8), range(8)):
        text = question(*pair, Draws(number)).removeprefix("[message] ")
        assert asked_cells(text, 8) == [pair], text


@pytest.fixture(scope="module")
def tokenizer():
    """That of a tiny model as `params.yaml` has its games."""
    given = {"patience": (1, 5), "max_questions": 5, "instructions": "short"}
    shown = Demonstrations(load_games({"matching": game_parameters("matching", given)}, seed=0), 512, last_seat=0)
    return small_tokenizer(chat_corpus(shown.alternating(512)), shown.words)


def test_held_out_wordings_are_new_sentences_of_words_that_occur(tokenizer):
    kept = {"held-out": HELD_OUT_ANSWERS, "reordered": REORDERED_ANSWERS}
    shown = {*QUESTIONS, *ANSWERS, *UNKNOWN, *VAGUE}
    assert not {*HELD_OUT_ANSWERS, *REORDERED_ANSWERS, *HELD_OUT_UNKNOWN} & shown
    for pair, number, name in product(product(range(3), range(3)), (-1, 0, 42, 99), kept):
        said = {answer(*pair, number, random.Random(seed), name) for seed in range(50)}
        known = {answer(*pair, number, random.Random(seed)) for seed in range(50)}
        assert len(said) == len(kept[name] if number >= 0 else HELD_OUT_UNKNOWN) and not said & known
        for text in said | known:
            tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("[message] " + text, add_special_tokens=False))
            assert not any(token.startswith("<0x") for token in tokens), tokens


def test_each_word_is_one_token_and_no_token_spans_two(tokenizer):
    words = [token for token in tokenizer.get_vocab() if not token.startswith("<")]
    assert len(words) > 100 and not any(re.search(r"\w\W+\w|\s\d+\W", word) for word in words)
    said = "[message] What is Ava Li's score for BLEU?"
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(said, add_special_tokens=False))
    assert tokens == ["[message]", " What", " is", " Ava", " Li", "'s", " score", " for", " BLEU", "?"]


def test_the_tokenizer_of_a_run_has_seen_questions_and_answers():
    """Demonstrations come in lessons, and the first ones ask nothing."""
    taught = Demonstrations(load_games({"matching": game_parameters("matching", {"patience": (1, 5)})}, 0), 2048, 0)
    tokenizer = small_tokenizer(chat_corpus(taught.alternating(128)), taught.words)
    for text in (question(0, 1), f"[message] {answer(1, 2, 42)}"):
        assert not any(token.startswith("<0x") for token in tokenizer.tokenize(text))
