"""Which scores a message asks for, in the words of people and of models."""

import json
from itertools import chain, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.games.matching import asked_cells
from slim_rl.games.matching import partner as wordings
from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS
from slim_rl.games.matching.reader import asks_something

MESSAGES = Path(__file__).parent / "messages"
PEOPLE = [*(f"development{number}" for number in ("", "-2", "-3", "-4", "-5")), "held_out", "unseen"]


def labelled(part):
    """The messages of a file; lines that are proposals or answers are left out."""
    lines = map(json.loads, (MESSAGES / f"{part}.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "text" in line]


def f1(pairs):
    """F1 of (found, labelled) booleans."""
    return 2 * sum(found and label for found, label in pairs) / sum(found + label for found, label in pairs)


@pytest.mark.parametrize(
    ("split", "exactly", "no_cell_too_many"),
    [("tuning", 0.96, 0.98), ("kept_apart", 0.88, 0.95), ("second_writer", 0.8, 0.98)],
)
def test_models_get_the_cells_they_ask_for(split, exactly, no_cell_too_many):
    """Floors below the rates measured, to notice damage by; see messages/GUIDELINE.md."""
    messages = [message for message in labelled("models") if message["split"] == split]
    cells = [(asked(message["text"]), message["asked"]) for message in messages]
    assert sum(found == label for found, label in cells) / len(cells) >= exactly
    too_many = [set(found.split(", ")) - {"", *label.split(", ")} for found, label in cells]
    assert sum(not extra for extra in too_many) / len(cells) >= no_cell_too_many


@pytest.mark.parametrize("part", PEOPLE)
def test_people_are_heard_when_they_ask(part):
    messages = labelled(part)
    assert f1([(asks_something(message["text"]), bool(message["questions"])) for message in messages]) >= 0.92


def test_people_ask_for_scores_about_as_labelled():
    """The labels have a stricter rule for what asks for a score: messages/GUIDELINE.md."""
    messages = [message for part in PEOPLE for message in labelled(part)]
    labels = [any("score" in question for question in message["questions"]) for message in messages]
    found = [bool(asked_cells(message["text"], 8)) for message in messages]
    assert f1(list(zip(found, labels, strict=True))) >= 0.5


def asked(text):
    """The pairs asked for, readable: "Ava BLEU, Daniel Electra"."""
    return ", ".join(f"{REVIEWERS[r].split()[0]} {SHORT_PAPERS[p]}" for r, p in asked_cells(text, 8))


def test_what_the_scripts_say_is_read_as_they_mean_it():
    for wording, reviewer, paper in product(wordings.QUESTIONS, range(8), range(8)):
        text = wording.format(reviewer=REVIEWERS[reviewer], paper=SHORT_PAPERS[paper])
        assert asks_something(text)
        assert asked_cells(text, 8) == [(reviewer, paper)]
        assert asked_cells(text, 3) == ([(reviewer, paper)] if max(reviewer, paper) < 3 else [])
    answers = (wordings.ANSWERS, wordings.HELD_OUT_ANSWERS, wordings.UNKNOWN, wordings.HELD_OUT_UNKNOWN, wordings.VAGUE)
    for wording in chain(*answers):
        assert not asks_something(wording.format(reviewer="Ava Li", paper="BLEU", number=57))


@pytest.mark.parametrize("case", labelled("cases"), ids=lambda case: case["text"][:40])
def test_each_case_asks_for_the_cells_that_it_names(case):
    """Questions in other words, questions that people asked, short ones that refer to others, suggestions, statements."""
    assert asks_something(case["text"]) == case["asks"]
    assert asked(case["text"]) == case["asked"]


RECITED = [
    "Ava Li - BLEU: 34, Ava Li - Electra: ?, Daniel Nguyen - BLEU: ?, Daniel Nguyen - Electra: 55",
    "- **Ava Li** (BLEU): `?`\n- **Ava Li** (Electra): 40\n- **Daniel Nguyen** (BLEU): ?",
    "Ava Li: BLEU ?, Electra 40\nDaniel Nguyen: BLEU 12, Electra ?",
    "BLEU: Ava Li=?, Daniel Nguyen=40; Electra: Ava Li=12, Daniel Nguyen=?",
    "Ava Li's score for BLEU is ?.\nDaniel Nguyen's score for Electra is unknown.",
    "| | BLEU | Electra |\n|---|---|---|\n| Ava Li | 34 | ? |\n| Daniel Nguyen | ? | 55 |",
    "Reviewer,BLEU,Electra\nAva Li,34,?\nDaniel Nguyen,?,55",
    '{"Ava Li": {"BLEU": 34, "Electra": "?"}, "Daniel Nguyen": {"BLEU": "?"}}',
    "I see a ? for Ava Li on BLEU and a ? for Daniel Nguyen on Electra.",
    "| Question | Answer |\n|---|---|\n| Ava Li on BLEU? | 34 |\n| Daniel Nguyen on Electra? | - |",
    "Unknown to me: Ava Li/BLEU, Daniel Nguyen/Electra.",
    "Ava Li: BLEU ?, Electra ?, GloVe ?\nDaniel Nguyen: BLEU ?, Electra ?, GloVe ?\nSofia Patel: BLEU ?, Electra ?",
    "BLEU: Ava Li ?, Daniel Nguyen ?; Electra: Ava Li ?, Daniel Nguyen ?",
    "Ava Li: BLEU -> ?, Electra -> ?\nDaniel Nguyen: BLEU -> ?, Electra -> ?",
    "Ava Li BLEU ? Electra ?\nDaniel Nguyen BLEU ? Electra ?",
    "Ava Li - BLEU - ?\nAva Li - Electra - ?\nDaniel Nguyen - BLEU - ?",
    "Ava Li: BLEU - ?/100, Electra - ?/100",
    "Ava Li\tBLEU\t?\nAva Li\tElectra\t34\nDaniel Nguyen\tBLEU\t?",
    "Ava Li's score for BLEU: -\nDaniel Nguyen's score for Electra: ___",
    "> What is Ava Li's score for BLEU?\nIt is 57.",
    "57.<br/>> What is Ava Li's score for BLEU? And for Electra?",
    "You asked: What is Ava Li's score for BLEU?",
    "You've just asked me: Can you tell me Ava Li's score for BLEU? It is 57.",
    "You wrote:\nWhat is Ava Li's score for BLEU?",
    "Your question was: What is Ava Li's score for BLEU?",
]


@pytest.mark.parametrize("board", RECITED)
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
