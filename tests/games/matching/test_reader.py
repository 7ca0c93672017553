"""Which scores a message asks for, in the words of people, of models and of scripts, and what became of a question."""

import json
from itertools import chain, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS
from slim_rl.games.matching.partner import (
    ANSWERS,
    EXACT_QUESTIONS,
    HELD_OUT_ANSWERS,
    HELD_OUT_UNKNOWN,
    QUESTIONS,
    UNKNOWN,
    VAGUE,
    ShyPartner,
)
from slim_rl.games.matching.reader import asked_cells, asks_something, classify, is_malformed
from slim_rl.games.matching.scripted import reference_player

MESSAGES = Path(__file__).parent / "messages"


def labelled(part, **values):
    """The messages of a file with these values; lines that are proposals or answers are left out."""
    lines = map(json.loads, (MESSAGES / f"{part}.jsonl").read_text(encoding="utf-8").splitlines())
    defaults = {"split": "", "language": "english"}
    return [m for m in lines if "text" in m and values.items() <= {**defaults, **m}.items()]


def asked(text):
    """The pairs asked for, readable: "Ava BLEU, Daniel Electra"."""
    return ", ".join(f"{REVIEWERS[r].split()[0]} {SHORT_PAPERS[p]}" for r, p in asked_cells(text, 8))


def at_least(rates, hits, found, labels):
    """At least the precision and recall of `hits` out of `found` and out of `labels`."""
    now_hits, now_found, now_labels = rates
    assert now_labels == labels and now_hits >= hits and now_hits * found >= hits * now_found, rates


def counts(pairs):
    """(hits, found, labelled) of (found, labelled) pairs of sets."""
    pairs = [tuple(map(set, pair)) for pair in pairs]
    return sum(len(a & b) for a, b in pairs), sum(len(a) for a, _ in pairs), sum(len(b) for _, b in pairs)


@pytest.mark.parametrize(
    ("split", "exactly", "cells"),
    [("tuning", 97, (113, 114, 118)), ("kept_apart", 92, (77, 79, 85)), ("second_writer", 57, (72, 72, 110))],
)
def test_models_get_the_cells_they_ask_for(split, exactly, cells):
    """No worse than measured on 2026-11-26; see messages/GUIDELINE.md."""
    texts = [(asked(m["text"]), m["asked"]) for m in labelled("models", split=split, language="english")]
    assert sum(found == label for found, label in texts) >= exactly
    at_least(counts(tuple(set(text.split(", ")) - {""} for text in pair) for pair in texts), *cells)


@pytest.mark.parametrize(
    ("part", "asking", "scores"),
    [
        ("development", (372, 392, 383), (38, 70, 55)),
        ("held_out", (79, 80, 79), (1, 4, 6)),
        ("unseen", (59, 62, 60), (7, 13, 7)),
    ],
)
def test_people_are_heard_when_they_ask(part, asking, scores):
    """No worse than measured on 2026-11-26. The labels have a stricter rule for what asks for a score."""
    messages = labelled(part)
    at_least(
        counts(({asks_something(m["text"])} - {False}, {bool(m["questions"])} - {False}) for m in messages), *asking
    )
    labels = [{any("score" in question for question in m["questions"])} - {False} for m in messages]
    found = [{bool(asked_cells(m["text"], 8))} - {False} for m in messages]
    at_least(counts(zip(found, labels, strict=True)), *scores)


@pytest.mark.parametrize("case", labelled("cases", language="english"), ids=lambda case: case["text"][:40])
def test_each_case_asks_for_the_cells_that_it_names(case):
    """Questions in other words, questions that people asked, short ones that refer to others, suggestions, statements."""
    assert asks_something(case["text"]) == case["asks"]
    assert asked(case["text"]) == case["asked"]


def test_a_message_in_another_language_asks_for_no_cell_too_many():
    for message in chain(labelled("cases", language="other"), labelled("models", language="other")):
        assert set(asked(message["text"]).split(", ")) - {""} <= set(message["asked"].split(", ")), message["text"]


def test_what_the_scripts_say_is_read_as_they_mean_it():
    for wording, reviewer, paper in product(chain(QUESTIONS, EXACT_QUESTIONS), range(8), range(8)):
        text = wording.format(reviewer=REVIEWERS[reviewer], paper=SHORT_PAPERS[paper])
        assert asks_something(text)
        assert asked_cells(text, 8) == [(reviewer, paper)]
        assert asked_cells(text, 3) == ([(reviewer, paper)] if max(reviewer, paper) < 3 else [])
    for wording in chain(ANSWERS, HELD_OUT_ANSWERS, UNKNOWN, HELD_OUT_UNKNOWN, VAGUE):
        assert not asks_something(wording.format(reviewer="Ava Li", paper="BLEU", number=57))


@pytest.mark.parametrize(
    "text",
    [
        "How is Sofia Patel Nguyen score BLEU Li?",
        "How good is Li Patel on BLEU?",
        "Tell me exactly what Ava Li Patel gets for GloVe.",
        "What is Ava Li's Sofia Patel's score for BLEU?",
        "What does Sofia get score Ava on Electra?",
        "Please tell me Sofia Patel's score on BLEU Nguyen.",
        "What is Sofia Nguyen's score for BLEU Li?",
        "Sofia Patel Nguyen?",
    ],
)
def test_names_that_run_into_each_other_make_a_message_malformed_and_it_gets_nothing(text):
    assert is_malformed(text, 8) and is_malformed(text, 3) and asks_something(text)
    assert asked_cells(text, 8) == asked_cells(f"{text} Tell me that.", 8) == []
    assert asked_cells(f"{text} What is Ava Li's score for BLEU?", 8) == [(0, 0)]


def test_no_message_of_people_or_chat_models_is_malformed():
    parts = ("cases", "development", "held_out", "unseen", "models")
    assert not [m["text"] for part in parts for m in labelled(part) if is_malformed(m["text"], 8)]


@pytest.mark.parametrize("board", [board["text"] for board in labelled("recited")])
def test_who_recites_the_board_asks_for_none_of_its_cells(board):
    for before, after in product(
        ("", "My board:\n", "Below are my scores, unknown ones are marked with ?:\n"),
        ("", "\nWhat do you see?", "\nCan you share your scores?", "\nPlease share what you know."),
    ):
        assert asked(before + board + after) == ""
    assert asked(board + "\nCould you tell me Sofia's score for GloVe?") == "Sofia GloVe"


@pytest.mark.parametrize(
    "word",
    ["and so ", "ok, ", "so ", "is ", "what ", "Ava and ", "please ", "which of the ", "maybe ", "- ", "' ", "? "],
)
def test_a_policy_that_repeats_itself_can_be_read(word):
    """Readings that multiply with each word would not end, above all where nothing asks behind them."""
    for last in ("what about Ava?", "zebra is?", "zebra is"):
        assert asked_cells(word * 200 + last, 8) == []


@settings(deadline=None)
@given(st.text(max_size=200), st.integers(1, 8))
def test_any_text_can_be_read(text, size):
    pairs = asked_cells(text, size)
    assert len(set(pairs)) == len(pairs)
    assert all(reviewer < size and paper < size for reviewer, paper in pairs)
    assert asks_something(text) or not pairs


AGENT, PARTNER = "player-1", "player-2"


def uses(*dialogue):
    """By question: what became of it; turns alternate, the agent begins. It sees Ava Li's score for BLEU."""
    turns = [((AGENT, PARTNER)[i % 2], text) for i, text in enumerate(dialogue)]
    names = ("known", "repeated", "with_number")
    return [{name for name in names if getattr(asked, name)} for asked in classify(turns, AGENT, {(0, 0)}, 8)]


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
    ) == [{"with_number"}, {"repeated"}, {"known", "with_number"}, set()]

    asked = "[message] What is Ava Li's score for Electra?"
    assert uses(asked, "[message] I don't know, 1 of my blanks.") == [set()]  # a refusal, whatever number it has
    assert uses(asked, "[accept] 57") == [set()]
    assert uses(
        "[message] What is Ava Li's score for Electra? What is Sofia Patel's score for QuAC?",
        "[message] Ava Li's score for Electra is 57. I do not know Sofia Patel's score for QuAC.",
    ) == [{"with_number"}, set()]


def test_the_game_and_the_report_count_alike_what_scripts_ask(matching, tasks):
    for task in tasks:
        played = matching.taskset.load(task)
        players = {
            AGENT: reference_player("asks-7-random", played, matching.parameters, 0),
            PARTNER: ShyPartner(played.view(PARTNER), matching.parameters, played.limits, seed=0),
        }
        mask = played.view(AGENT).mask
        turns = []
        while seat := played.turn:
            turns.append((seat, players[seat].turn(played.read(seat))))
            played.move(turns[-1][1])
        seen = {(r, p) for r in range(3) for p in range(3) if mask[r, p]}
        asked, metrics = classify(turns, AGENT, seen, 3), played.metrics()
        assert len(asked) == metrics[f"{AGENT}.question_count"] > 0
        assert sum(not (a.known or a.repeated) for a in asked) == metrics[f"{AGENT}.useful_cells"]
        assert sum(a.with_number for a in asked) == metrics[f"{AGENT}.answers"]
