"""The shy partner keeps its secrets, in words that a tiny model can learn; and the turn in a chat model's reply."""

import random
import re
from itertools import product

import numpy as np
import pytest

from slim_rl.games import game_parameters, load_games
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.partner import (
    ANSWERS,
    HELD_OUT_ANSWERS,
    HELD_OUT_UNKNOWN,
    QUESTIONS,
    REORDERED_ANSWERS,
    UNKNOWN,
    VAGUE,
    ShyPartner,
    answer,
    one_turn,
    question,
)
from slim_rl.games.matching.reader import told_numbers
from slim_rl.games.matching.rules import Limits, View
from slim_rl.training.demonstrations import Demonstrations
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer

VIEW = View(
    mask=np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], dtype=bool),
    numbers=np.array([[57, 12, -1], [30, 80, 5], [-1, 44, 90]]),
    bounds=np.array([[[57, 12, 0], [30, 80, 5], [0, 44, 90]], [[57, 12, 99], [30, 80, 5], [99, 44, 90]]]),
    scale=1.0,
)


def partner(patience=None, ignorant=False, seed=0, **parameters):
    """(text) -> what a shy partner says to it."""
    player = ShyPartner(VIEW, Parameters(**parameters), Limits(20, patience), seed, ignorant)
    return lambda text: player.turn(f"Partner: {text}")


def numbers_in(text):
    return re.findall(r"\d+", text)


@pytest.mark.parametrize("wordings", ["usual", "held-out", "reordered"])
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("What is Ava Li's score for BLEU?", ["57"]),
        ("how good is sofia at glove", ["90"]),
        ("tell me Daniel's Electra score", ["80"]),
        ("What is Ava Li's score for GloVe?", []),
    ],
)
def test_it_answers_what_it_is_asked_about_one_pair_in_several_wordings(text, number, wordings):
    replies = {partner(seed=seed, wordings=wordings)(f"[message] {text}") for seed in range(20)}
    assert len(replies) > 1
    for reply in replies:
        assert numbers_in(reply) == number and ("I do not" in reply) == (not number)


@pytest.mark.parametrize("wordings", ["usual", "held-out", "reordered"])
def test_several_answers_in_one_message_say_what_each_is_about(wordings):
    for seed in range(20):
        reply = partner(seed=seed, wordings=wordings)("[message] Ava on BLEU? Daniel on GloVe? And Ava on GloVe?")
        assert told_numbers(reply, 3) == (((0, 0), "57"), ((1, 2), "5"))
        assert "Ava Li's score" in reply.rpartition("I do not")[2]


@pytest.mark.parametrize("patience", range(8))
def test_one_long_message_gains_nothing_beyond_the_partners_patience(patience):
    at_once, one_by_one = partner(patience), partner(patience)
    reply = at_once("[message] Tell me the scores of Ava, Daniel and Sofia for Electra and BLEU.")
    told = [number for _, number in told_numbers(reply, 3)]
    assert told == ["12", "57", "80", "30", "44"][:patience]  # it does not know that of Sofia for BLEU
    replies = [one_by_one(question(row, column)) for row in range(3) for column in (1, 0)]
    assert [number for reply in replies for number in numbers_in(reply)] == told
    if patience < 6:
        assert not numbers_in(at_once("[message] Ava on BLEU?")) and "do not" not in replies[-1]


def test_to_say_that_it_does_not_know_takes_patience_and_an_ignorant_partner_has_no_more():
    ask = partner(patience=1)
    assert "I do not" in ask("[message] Ava on GloVe?")
    assert not re.search(r"\d|do not", ask("[message] Ava on BLEU?"))
    ask = partner(patience=2, ignorant=True)
    replies = [ask("[message] Ava on BLEU?") for _ in range(3)]
    assert ["I do not" in reply for reply in replies] == [True, True, False] and not numbers_in("".join(replies))


@pytest.mark.parametrize(
    "text",
    [
        "Who is good at BLEU?",
        "Tell me everything you know about Ava.",
        "Please, please give me all your scores!",
        "What is your best assignment?",
        "Ava has 90 for BLEU with me.",
        "Hello!",
        "I think Ava should take BLEU.",
        "Partner: [propose] x",
    ],
)
def test_it_never_volunteers_a_number_and_more_general_questions_take_no_patience(text):
    ask = partner(patience=1)
    reply = ask(f"[message] {text}")
    assert reply.startswith("[message]") and not numbers_in(reply)
    assert numbers_in(ask("[message] Ava on BLEU?")) == ["57"]


def test_it_weighs_proposals_by_its_own_numbers():
    def propose(*assignment):
        return f"[propose] {format_proposal(assignment)}\nYou can output one of these choices: [accept] or [reject]"

    weighs = partner(always_accept=False)
    assert weighs(propose(0, 1, 2)) == "[accept]"  # 57 + 80 + 90
    assert weighs(propose(1, 2, 0)) == "[reject]"  # 12 + 5 + unknown
    assert partner()(propose(1, 2, 0)) == "[accept]"


@pytest.fixture(scope="module")
def tokenizer():
    """The tokenizer of a tiny model that has seen few demonstrations; the first ones ask nothing."""
    parameters = game_parameters("matching", {"patience": (1, 5), "max_questions": 5, "instructions": "short"})
    demonstrations = Demonstrations(load_games({"matching": parameters}, seed=0), 2048, last_seat=0)
    return small_tokenizer(chat_corpus(demonstrations.alternating(128)), demonstrations.words)


def test_held_out_wordings_are_new_sentences_of_words_that_the_tokenizer_knows(tokenizer):
    held_out = {"held-out": HELD_OUT_ANSWERS, "reordered": REORDERED_ANSWERS}
    assert not {*HELD_OUT_ANSWERS, *REORDERED_ANSWERS, *HELD_OUT_UNKNOWN} & {*QUESTIONS, *ANSWERS, *UNKNOWN, *VAGUE}
    for pair, number, name in product(product(range(3), range(3)), (-1, 0, 42, 99), held_out):
        new = {answer(*pair, number, random.Random(seed), name) for seed in range(50)}
        usual = {answer(*pair, number, random.Random(seed)) for seed in range(50)}
        assert len(new) == len(held_out[name] if number >= 0 else HELD_OUT_UNKNOWN) and not new & usual
        for text in new | usual:
            assert not any(token.startswith("<0x") for token in tokenizer.tokenize("[message] " + text)), text


PROPOSAL = "Partner: [propose] Proposal:\nBLEU: Ava Li\nYou can output one of these choices: [accept] or [reject]"
HELLO = "Partner: [message] Hi"


@pytest.mark.parametrize(
    ("heard", "said", "turn"),
    [
        (HELLO, "[message] Hello.", "[message] Hello."),
        (HELLO, "Hello.", "[message] Hello."),
        (HELLO, "Sure! [message] Hello.", "[message] Hello."),
        (HELLO, "You: [message] Hello.\nPartner: [message] And?", "[message] Hello."),
        (HELLO, "[Message] Hello. [propose] BLEU: Ava Li", "[message] Hello."),
        (PROPOSAL, "[accept]", "[accept]"),
        (PROPOSAL, "I accept your proposal.", "[accept]"),
        (PROPOSAL, "[message] Good. [reject]", "[reject]"),
        ("Error: A proposal was made. Answer it with [accept] or [reject].", "[Accept].", "[accept]"),
        (HELLO, "  ", None),
        (HELLO, "[accept]", None),
        (HELLO, "[propose] BLEU: Ava Li", None),
        (PROPOSAL, "[accept] or [reject]?", None),
        (PROPOSAL, "I do not accept.", None),
    ],
)
def test_the_one_turn_in_a_reply_or_what_would_be_right(heard, said, turn):
    if turn:
        assert one_turn(heard, said) == turn
    else:
        with pytest.raises(ValueError, match=r"\[accept\] or \[reject\]" if heard == PROPOSAL else r"\[message\]"):
            one_turn(heard, said)
