"""Which scores a message asks for, in the words of people and of models."""

import json
from itertools import chain, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.games.matching import asked_cells, wordings
from slim_rl.games.matching.names import PAPERS, REVIEWERS, SHORT_PAPERS
from slim_rl.games.matching.questions import asks_something

MESSAGES = Path(__file__).parent / "messages"
PEOPLE = [*(f"development{number}" for number in ("", "-2", "-3", "-4", "-5")), "held_out", "unseen"]


def labelled(part):
    """The messages of a file; lines that are proposals or answers are left out."""
    lines = map(json.loads, (MESSAGES / f"{part}.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "text" in line]


def f1(pairs):
    """F1 of (found, labelled) booleans."""
    return 2 * sum(found and label for found, label in pairs) / sum(found + label for found, label in pairs)


@pytest.mark.parametrize(("split", "exactly", "no_cell_too_many"), [("tuning", 0.96, 0.98), ("kept_apart", 0.88, 0.95)])
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


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("what do you have for Ava on bleu", "Ava BLEU"),
        ("Ava - BLEU?", "Ava BLEU"),
        ("how good is Daniel at Electra?", "Daniel Electra"),
        ("could you tell me Sofia's GloVe score", "Sofia GloVe"),
        ("WHAT IS AVA LI'S SCORE FOR BLEU", "Ava BLEU"),
        ("whats avas bleu score", "Ava BLEU"),
        ("Thanks. I need Ava's score on BLEU.", "Ava BLEU"),
        ("I'd like to know how Ava does on BLEU", "Ava BLEU"),
        ("Please provide Ava's score for BLEU.", "Ava BLEU"),
        ("any info on Ava for BLEU", "Ava BLEU"),
        ("For Ava on BLEU, what score do you have?", "Ava BLEU"),
        ("Ava on BLEU: what do you have?", "Ava BLEU"),
        (f"What is *Ava Li*\u2019s score for **{PAPERS[0]}**?", "Ava BLEU"),
        ("What score would Ava get if we put her on BLEU?", "Ava BLEU"),
        ("Of the reviewers left, what's Ava's score for BLEU?", "Ava BLEU"),
        ("To decide whom to put on GloVe, could you tell me Ava's score for BLEU?", "Ava BLEU"),
        ("what are Ava's scores for BLEU and Electra?", "Ava BLEU, Ava Electra"),
        ("BLEU score for Ava and Daniel?", "Ava BLEU, Daniel BLEU"),
        ("Ava for BLEU and Daniel for GloVe?", "Ava BLEU, Daniel GloVe"),
        ("BLEU for Ava and GloVe for Daniel?", "Ava BLEU, Daniel GloVe"),
        ("Ava BLEU? Daniel Electra?", "Ava BLEU, Daniel Electra"),
        ("Ava's scores for BLEU and GloVe, and Daniel's for Electra?", "Ava BLEU, Ava GloVe, Daniel Electra"),
        ("Scores of Ava and Daniel on BLEU and GloVe respectively?", "Ava BLEU, Daniel GloVe"),
        ("What is Ava's BLEU score? Ava for BLEU?", "Ava BLEU"),
        ("Please tell me your scores for:\n- Ava Li: BLEU\n- Daniel: GloVe\nThanks!", "Ava BLEU, Daniel GloVe"),
        ("Your scores for these, please:<br/>1. Ava - BLEU<br/>I have Sofia at 40 on GLUE", "Ava BLEU"),
        (
            "Ava Li, Daniel, Sofia: BLEU, GloVe?",
            "Ava BLEU, Ava GloVe, Daniel BLEU, Daniel GloVe, Sofia BLEU, Sofia GloVe",
        ),
        ("What is Ava's score for BLEU?What is Ava's score for GLUE?", "Ava BLEU, Ava GLUE"),
        ("Who is good at BLEU? / What is Ava's score for GLUE?", "Ava GLUE"),
        ("I'd appreciate your score for Ava on BLEU.", "Ava BLEU"),
        ("Your scores for Ava on BLEU and Daniel on GloVe would help me.", "Ava BLEU, Daniel GloVe"),
        ("Could you share the following?\n* **Ava Li**:\n  * BLEU\n  * Electra", "Ava BLEU, Ava Electra"),
        ("I need your scores for:\n- Ava \u2013 BLEU: ?\n- Daniel \u2013 GloVe: ?", "Ava BLEU, Daniel GloVe"),
        ("<think>Ava on BLEU?</think> Daniel on GloVe?", "Daniel GloVe"),
        ("Ava on BLEU? No, Daniel.</think>Daniel on GloVe?", "Daniel GloVe"),
        ("\u201cIs Ava good on BLEU?\u201d - she has 40. And Daniel on GloVe?", "Daniel GloVe"),
        ('"What is Ava\'s score for BLEU?"', "Ava BLEU"),
        ("Ava Li\u5728BLEU\u4e0a\u7684\u5206\u6570\u662f\u591a\u5c11\uff1f", "Ava BLEU"),
        ("\u00bfQu\u00e9 puntuaci\u00f3n tiene Ava en BLEU?", "Ava BLEU"),
        ("Bitte nenne mir Avas Wert f\u00fcr BLEU.", "Ava BLEU"),
        ("Donne-moi le score d'Ava pour BLEU.", "Ava BLEU"),
        # What a short question refers to.
        ("And for GloVe?", ""),
        ("What is Ava's score for BLEU? And for GloVe?", "Ava BLEU, Ava GloVe"),
        ("What is Ava's score for BLEU? What about Daniel?", "Ava BLEU, Daniel BLEU"),
        ("I have 80 for Ava on BLEU. What about Electra?", ""),
        ("I have 80 for Ava on BLEU. What about Daniel on Electra?", "Daniel Electra"),
        ("I have 80 for Ava on BLEU, what about Daniel on Electra?", "Daniel Electra"),
        ("I have 80 for Ava on BLEU, what about you?", "Ava BLEU"),
        ("I don't have Ava's BLEU score, do you?", "Ava BLEU"),
        ("My best are Ava on BLEU and Daniel on GloVe. And you?", ""),
        ("These are open: Ava - BLEU, Daniel - GloVe. Please share them.", "Ava BLEU, Daniel GloVe"),
        ("I don't have Ava's BLEU score. Could you tell me what it is?", "Ava BLEU"),
        ("Let's talk about Ava. What's her BLEU score?", "Ava BLEU"),
        ("I have 15 for Sofia on BLEU. How is Ava on that paper?", "Ava BLEU"),
        ("BLEU: what is Ava's score?", "Ava BLEU"),
        ("I have 57 for Sofia on GloVe. I see none for Ava on BLEU. Can you share it?", "Ava BLEU"),
        ("Regarding Ava: could you tell me the score for BLEU?", "Ava BLEU"),
        # General questions and suggestions ask for no score.
        ("I think Ava would be good for BLEU?", ""),
        ("who is good at BLEU?", ""),
        ("what about Ava?", ""),
        ("What are all your scores?", ""),
        ("Tell me everything.", ""),
        ("Should we put Ava on BLEU?", ""),
        ("is Ava on BLEU ok?", ""),
        ("how about we assign Ava to BLEU?", ""),
        ("What about moving Ava to BLEU?", ""),
        ("Would you like to know my score for Ava on BLEU?", ""),
        ("I propose Ava for BLEU. What do you think?", ""),
        ("Ava on BLEU, Daniel on GloVe. Does that work for you?", ""),
        ("Ava on BLEU, Daniel on GloVe, Sofia on GLUE?", ""),
        ("How does Ava on BLEU and Daniel on GloVe look?", ""),
        ("Why is Ava good on BLEU?", ""),
        ("Can you confirm Ava for BLEU?", ""),
        ("I think Ava on BLEU and Daniel on GloVe. What do you think?", ""),
        ("What do you have for Ethan?", ""),
        ("Do you have any greens for Mr. Petrov?", ""),
        ("Anywhere we can place Andrei?", ""),
        ("How about we swap Ava and Noah?", ""),
        ("What are yours?", ""),
        ("first game?", ""),
    ],
)
def test_questions_in_other_words(text, pairs):
    assert asks_something(text)
    assert asked(text) == pairs


@pytest.mark.parametrize(
    "text",
    [
        "Ava is 57 on BLEU",
        "My score for Ava Li on BLEU is 57.",
        "I have Ava at 80 for BLEU",
        "I have no score for Ava Li on BLEU.",
        "I don't know Ava's score for BLEU.",
        "I know what is best: Ava on BLEU.",
        "let's put Ava on BLEU",
        "I need Ava on BLEU.",
        "Let me know if you need anything else from me!",
        "Feel free to ask me about Ava's score for BLEU.",
        "I'd be happy to share Ava's score for BLEU.",
        "Thank you for Ava's score for BLEU.",
        "You asked for Ava's score on BLEU.",
        "No need to tell me Ava's score for BLEU.",
        "<think>What is Ava's score for BLEU? And Daniel's",
        "ok send a proposal then",
        "What a great idea!",
        "Whatever you want",
        "could happen but Daniel is also nice for it",
        "57",
        "",
    ],
)
def test_statements_ask_nothing(text):
    assert not asks_something(text)
    assert asked(text) == ""


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("How do you feel about Daniel on Bleu?", "Daniel BLEU"),
        ("My next best is Joseph Santos on Electra... / How's Santos look on Electra on yours?", "Joseph Electra"),
        ("Do you see Ava's Quac? / Cause Ethan is better at SWAG then Ava", "Ava QuAC"),
        ("real quick is daniel dark green for electra?", "Daniel Electra"),
        ("That sounds like a good idea. / How does Noah sound for QuAc?", "Noah QuAC"),
        ("Andrei is blank on GLUE for me, what do you have there?", "Andrei GLUE"),
        ("What do you have for Morgan under GLUE?", "Morgan GLUE"),
        ("Is Noah Wilson any good at SWAG on your board?", "Noah SWAG"),
        (
            "Andrei however is mid at GLUE / is Daniel good at Glue or Llama? / cause we can move him over",
            "Daniel GLUE, Daniel LLaMA",
        ),
        ("Do you have info on Morgan/Llama? / Noah is only very slightly worse on Bleu", "Morgan LLaMA"),
        ("Perfect. Daniel SWAG? its red but not terrible", "Daniel SWAG"),
        ("How is Andreis roberta?", "Andrei RoBERTa"),
        ("would you say 9 or 10 out of 10 on Sofia on BLEU?", "Sofia BLEU"),
        ("nothing bad I can see. / What information do you have in regard to Daniel and QuAC?", "Daniel QuAC"),
        ("How about Santos for SWAg?", "Joseph SWAG"),
        ("I'm thinking Ethan would be good on BLEU. Does Ava have a lot of experience with BLEU?", "Ava BLEU"),
        ("Is ethan glue unknown for you?", "Ethan GLUE"),
        ("Do you think Ava would handle the review of LLaMA better than Ethan?", "Ava LLaMA, Ethan LLaMA"),
        ("Can you see Ethans Electra / its my best by far / but their Swag is also super strong", "Ethan Electra"),
        ("How about Ava on GLUE or QUAC", "Ava GLUE, Ava QuAC"),
        (
            "Do you think Andrei is a good fit for QuAC? Regarding SWAG, is there someone other than Morgan?",
            "Andrei QuAC",
        ),
        (
            "Who are you thinking for Electra? Ethan or Joseph? I'm not familiar with their work",
            "Ethan Electra, Joseph Electra",
        ),
        ("lets go back to that / do you have any good options for swag besides sofia?", ""),
        ("and glue and quac... though sofia on Quac is 'ok' / Toss Daniel on Glue and Sofia on Quac?", ""),
        ("Andrei would be a good reviewer for BLEU. Ethan Smith Electra. / Who would be good for Glove?", ""),
        ("Andrei can do llama at middling proficiency, do you see anything else for him?", ""),
        ("Is there a possibility we can go with Sofia for BLEU?", ""),
        ("Ok, What do you have for Andrei? / I have no info besides that he is bad at glue", ""),
        ("Can we bring back Ava to Glue and Andrei to QuAc? / Rest looks good.", ""),
        ("Okay perfect. How do you feel about Daniel being placed / in GLUE?", ""),
        ("okay, so are you okay with daniel nguyen reading swag?", ""),
        ("Does anyone else look better for RoBERTa than Sofia?", ""),
        ("I think Daniel will be better suited for GLoVe, can we adjust to make that happen?", ""),
        ("Sounds good let's give BLEU to Ethan. What about Electra? Any thoughts on who might be good?", ""),
        ("Ava - SWAG / Daniel - GloVe / Noah - GLUE / What do you think of these assignments?", ""),
        ("If you go petrov on SWAG, would santas on glove work? / (I have nothing else good for Santos)", ""),
        ("First game? / So Daniel on Bleu is my best --- what papers and people are the best on your end?", ""),
    ],
)
def test_questions_that_people_asked(text, pairs):
    assert asks_something(text)
    assert asked(text) == pairs


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
