"""Which questions a message asks, about which cells, and what became of them in their episode."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.games.matching.asking import classify, find_questions
from slim_rl.games.matching.scripted import ShyPartner, reference_player

LABELS = Path(__file__).parent / "messages"
AGENT, PARTNER = "player-1", "player-2"
SIZE = 8
PARTS = [*(f"development{number}" for number in ("", "-2", "-3", "-4", "-5")), "held_out", "unseen"]


def found(text):
    return [question.text for question in find_questions(text, SIZE)]


def labelled(part):
    lines = map(json.loads, (LABELS / f"{part}.jsonl").read_text().splitlines())
    return [line for line in lines if "text" in line]


def agreement(messages, count):
    """F1 of the questions that `count` finds and those that it counts among a message's labels, message by message."""
    pairs = [count(find_questions(m["text"], SIZE), m["questions"]) for m in messages]
    return 2 * sum(min(pair) for pair in pairs) / sum(map(sum, pairs))


@pytest.mark.parametrize("part", PARTS)
def test_people_are_read_as_labelled(part):
    """Floors to notice damage by, below what was measured."""
    messages = labelled(part)
    assert agreement(messages, lambda ours, theirs: (bool(ours), bool(theirs))) >= 0.92
    assert agreement(messages, lambda ours, theirs: (len(ours), len(theirs))) >= 0.9


def test_what_people_ask_for_is_read_as_the_partner_reads_it():
    """The labels have a stricter rule for what asks for a score: messages/GUIDELINE.md."""
    messages = [message for part in PARTS for message in labelled(part)]
    for_scores = agreement(
        messages, lambda ours, theirs: (sum(bool(q.pairs) for q in ours), sum("score" in q for q in theirs))
    )
    assert for_scores >= 0.5


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("how good is daniel at electra", {(1, 1)}),
        ("is Ava good\nat Quac or Electra", set()),  # the partner does not answer it
        ("What are Ava's scores for BLEU and GloVe?", {(0, 0), (0, 2)}),
        ("Who is good at BLEU? / What is Ava's score for GLUE?", {(0, 3)}),
        ("What do you have for Ethan?", set()),
        ("Who would be good for Electra?", set()),
        ("What are yours?", set()),
        ("I think Ava on BLEU and Daniel on GloVe. What do you think?", set()),
        ("Does that work for you?", set()),
        ("Hi, how are you doing?", set()),
        ("first game?", set()),
        ("I'm doing well, how about yourself?", set()),
        ("LLaMA - who do you have?", set()),
        ("Anywhere we can place Andrei?", set()),
        ("How about we swap Ava and Noah?", set()),
        ("Do you have any greens for Mr. Petrov?", set()),
        ("What about\nAva?", set()),
    ],
)
def test_which_cells_are_asked_for(text, pairs):
    questions = find_questions(text, SIZE)
    assert questions
    assert {pair for question in questions for pair in question.pairs} == pairs


def test_each_of_several_questions_has_its_own_cells_and_only_those_in_play():
    text = "What is Ava's score for BLEU? And for GloVe? What about Daniel?"
    assert [question.pairs for question in find_questions(text, SIZE)] == [((0, 0),), ((0, 2),), ((1, 2),)]
    [question] = find_questions("What is Noah's score for SWAG?", size=3)
    assert question.pairs == ()


@pytest.mark.parametrize(
    "text",
    [
        "ok send a proposal then",
        "What a great idea!",
        "Whatever you want",
        "could happen but Daniel is also nice for it",
    ],
)
def test_what_seeks_no_answer_is_no_question(text):
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "questions"),
    [
        ("What is Ava's score for BLEU? And Daniel's for GloVe?", 2),
        ("What is Ava's score for BLEU?What is Ava's score for GLUE?", 2),
        ("Daniel and Morgan?", 1),
        ("Please tell me your scores for:\n- Ava Li: BLEU\n- Daniel: GloVe\nThanks!", 1),
        ("I have none. What are Ava's scores for BLEU and GloVe?", 1),
    ],
)
def test_several_questions_count_one_by_one_without_what_stands_before_them(text, questions):
    assert len(found(text)) == questions and not any("I have none" in question for question in found(text))


@pytest.mark.parametrize(
    "word", ["and so ", "ok, ", "so ", "is ", "what ", "Ava and ", "please ", "which of the ", "maybe ", "- "]
)
def test_a_policy_that_repeats_itself_can_be_read(word):
    """Readings that multiply with each word would not end, above all where nothing asks behind them."""
    for last in ("what about Ava?", "zebra is?", "zebra is"):
        assert len(found(word * 200 + last)) <= 2


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_can_be_read(text):
    for question in find_questions(text, SIZE):
        assert question.text.strip() and all(0 <= index < SIZE for pair in question.pairs for index in pair)


SEEN = {AGENT: {(0, 0)}, PARTNER: {(0, 0), (0, 1), (1, 1)}}


def uses(*dialogue):
    """By question: what became of it; turns alternate, the agent begins."""
    turns = [(AGENT if i % 2 == 0 else PARTNER, text) for i, text in enumerate(dialogue)]
    return [
        {name for name in asked._fields[2:] if getattr(asked, name)} for asked in classify(turns, AGENT, SEEN, SIZE)
    ]


def test_what_became_of_questions():
    assert uses(
        "[message] What is Ava Li's score for Electra?",
        "[message] Ava Li's score for Electra is 57.",
        "[message] What is Ava Li's score for Electra?",
        "[message] Good.",
        "[message] What is Ava Li's score for BLEU?",
        "[message] It is 44.",
        "[message] What is Sofia's score for QuAC?",
        "[message] I do not know Sofia Patel's score for QuAC.",
        "[message] Who is good at GloVe?",
        "[propose] Proposal:\nBLEU: Ava Li",
        "[propose] Is this a question?",
    ) == [{"useful", "with_number"}, {"repeated"}, {"known", "with_number"}, {"useful", "unanswerable"}, set()]


def test_what_answers_a_question():
    asked = "[message] What is Ava Li's score for Electra?"
    assert uses(asked, "[message] I don't know, 1 of my blanks.") == [{"useful"}]  # a refusal, whatever number it has
    assert uses(asked, "[accept] 57") == [{"useful"}]
    assert uses(
        "[message] What is Ava Li's score for Electra? What is Sofia Patel's score for QuAC?",
        "[message] Ava Li's score for Electra is 57. I do not know Sofia Patel's score for QuAC.",
    ) == [{"useful", "with_number"}, {"useful", "unanswerable"}]


def test_the_game_and_the_report_count_alike_what_scripts_ask(matching, tasks):
    for task in tasks:
        played = matching.taskset.load(task)
        players = {
            AGENT: reference_player("asks-7-random", played, matching.parameters, 0),
            PARTNER: ShyPartner(played.view(PARTNER), always_accept=True),
        }
        views = {seat: played.view(seat).mask for seat in players}
        turns = []
        while seat := played.turn:
            turns.append((seat, players[seat].turn(played.observe(seat))))
            played.step(turns[-1][1])
        seen = {s: {(r, p) for r in range(3) for p in range(3) if mask[r, p]} for s, mask in views.items()}
        asked, metrics = classify(turns, AGENT, seen, 3), played.metrics()
        counts = Counter(name for a in asked for name in ("useful", "with_number") if getattr(a, name))
        assert len(asked) == metrics[f"{AGENT}.questions"] > 0
        assert counts["useful"] == metrics[f"{AGENT}.useful_questions"]
        assert counts["with_number"] == metrics[f"{AGENT}.answers"]
