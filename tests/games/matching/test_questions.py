"""Which scores a message asks for, in the words of people and of models."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.games.matching.names import PAPERS, REVIEWERS, SHORT_PAPERS
from slim_rl.games.matching.questions import asked_cells, asks_something


def asked(text):
    """The pairs asked for, readable: "Ava BLEU, Daniel Electra"."""
    return ", ".join(f"{REVIEWERS[r].split()[0]} {SHORT_PAPERS[p]}" for r, p in asked_cells(text, 8))


def test_the_canonical_question():
    for reviewer, paper in product(range(8), range(8)):
        text = f"What is {REVIEWERS[reviewer]}'s score for {SHORT_PAPERS[paper]}?"
        assert asks_something(text)
        assert asked_cells(text, 8) == [(reviewer, paper)]
        assert asked_cells(text, 3) == ([(reviewer, paper)] if max(reviewer, paper) < 3 else [])


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
        # General questions and suggestions ask for no score.
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


@settings(deadline=None)
@given(st.text(max_size=200), st.integers(1, 8))
def test_any_text_can_be_read(text, size):
    pairs = asked_cells(text, size)
    assert len(set(pairs)) == len(pairs)
    assert all(reviewer < size and paper < size for reviewer, paper in pairs)
    assert asks_something(text) or not pairs
