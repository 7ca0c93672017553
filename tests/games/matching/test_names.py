"""Names as people write them: found, resolved, or rejected with a sentence."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.games.matching.names import (
    PAPERS,
    REVIEWERS,
    SHORT_PAPERS,
    InvalidProposal,
    UnknownName,
    find_mentions,
    format_proposal,
    parse_proposal,
    resolve_paper,
    resolve_reviewer,
)

HUMAN_GAMES = Path(__file__).parents[3] / "data" / "human" / "human_games.jsonl"
LONG_NAMES = [
    *((word, "reviewer", i) for i, name in enumerate(REVIEWERS) for word in name.split() if len(word) >= 5),
    *((name, "paper", i) for i, name in enumerate(SHORT_PAPERS) if len(name) >= 5),
]
RESOLVE = {"reviewer": resolve_reviewer, "paper": resolve_paper}


def found(text, size=8):
    return [(m.kind, m.index, text[m.start : m.end]) for m in find_mentions(text, size)]


@st.composite
def edited(draw, name):
    """`name` with one letter left out, put in, replaced or swapped with the next."""
    at, letter = draw(st.integers(0, len(name) - 1)), draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz"))
    before, here, after = name[:at], name[at], name[at + 1 :]
    ends = (after, letter + here + after, letter + after, after[:1] + here + after[1:])
    return before + draw(st.sampled_from(ends))


@pytest.mark.parametrize(
    ("kind", "index", "texts"),
    [
        ("reviewer", 0, ("Ava Li", "ava", "LI", "Ava's", "Ava\u2019s", "AvaLi")),
        ("reviewer", 1, ("Danial", "Daniel Ngyuen")),
        ("reviewer", 2, ("Sophia", "**Sofia Patel**")),
        ("reviewer", 3, ("1. Andrei", "- Andrei Petrov (57)")),
        ("reviewer", 5, ("Jospeh", "Santos'")),
        ("paper", 0, ("BLEU", "bleu", "- **BLEU**")),
        ("paper", 1, ("Elektra",)),
        ("paper", 3, ("GLUEE", "the GLUE paper")),
        ("paper", 4, ("LLaMA: Open and Efficient",)),
        ("paper", 6, ("Quack", "Question Answering in Context")),
        *(("paper", i, (title, title.upper())) for i, title in enumerate(PAPERS)),
    ],
)
def test_a_name_is_known_by_any_usual_spelling(kind, index, texts):
    assert {RESOLVE[kind](text, 8) for text in texts} == {index}


@pytest.mark.parametrize(
    ("kind", "texts", "size", "sentence"),
    [
        (
            "reviewer",
            ("", "Bob", "Joe", "Li Ava Bob", "57"),
            3,
            "is not a reviewer in this game; choose one of Ava Li, Da",
        ),
        ("reviewer", ("Andrei Patel",), 8, '"Andrei Patel" could be the reviewer Sofia Patel or Andrei Petrov'),
        ("paper", ("BLUE", "gleu"), 3, "could be the paper BLEU or GLUE"),
        ("paper", ("BLUE", "gleu"), 8, "could be the paper BLEU or GLUE"),
        ("paper", ("GLU",), 8, '"GLU" is not a paper'),
        (
            "paper",
            ("GLUE",),
            3,
            '^"GLUE" is not a paper in this game; .* BLEU, Electra or GloVe',
        ),  # nor a misspelt BLEU
    ],
)
def test_an_unknown_or_ambiguous_name_is_refused_with_the_choices(kind, texts, size, sentence):
    for text in texts:
        with pytest.raises(UnknownName, match=sentence):
            RESOLVE[kind](text, size)


@settings(deadline=None)
@given(st.data(), st.sampled_from(LONG_NAMES))
def test_one_typo_in_a_long_name_never_makes_it_another_and_case_does_not_matter(data, name):
    word, kind, index = name
    typed = data.draw(edited(word))
    with suppress(UnknownName):
        assert RESOLVE[kind](typed, 8) == index
    assert {(m.kind, m.index) for m in find_mentions(f"What about {typed}?", 8)} <= {(kind, index)}
    upper = data.draw(st.lists(st.booleans(), min_size=len(word), max_size=len(word)))
    typed = "".join(c.upper() if up else c.lower() for c, up in zip(word, upper, strict=True))
    assert RESOLVE[kind](typed, 8) == index
    assert found(typed) == [(kind, index, typed)]


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("Ava Li's score for bleu", [("reviewer", 0, "Ava Li"), ("paper", 0, "bleu")]),
        ("Morgan/Llama", [("reviewer", 4, "Morgan"), ("paper", 4, "Llama")]),
        ("How is Andreis roberta", [("reviewer", 3, "Andreis"), ("paper", 5, "roberta")]),
        ("daneil, sophia patle", [("reviewer", 1, "daneil"), ("reviewer", 2, "sophia patle")]),
        ("Ava Daniel", [("reviewer", 0, "Ava"), ("reviewer", 1, "Daniel")]),
        (f"{PAPERS[3]} (GLUE)", [("paper", 3, PAPERS[3]), ("paper", 3, "GLUE")]),
        ("Joseph Smith or Ethan Smith", [("reviewer", 6, "Ethan Smith")]),
        ("I would love to have the dark green or blue; he will move above the globe", []),
        ("Gluve, a creed", []),
        ("an organ, a panel, more than that, need to read this free reel", []),
        ("", []),
    ],
)
def test_mentions_in_free_text(text, mentions):
    assert found(text) == mentions
    assert found("GLUE or BLEU?", size=3) == [("paper", 0, "BLEU")]


@settings(deadline=None)
@given(st.text(max_size=200), st.integers(1, 8))
def test_any_text_can_be_read(text, size):
    for mention in find_mentions(text, size):
        assert mention.index < size and text[mention.start : mention.end].strip()
    try:
        assert sorted(parse_proposal(text, size)) == list(range(size))
    except InvalidProposal as error:
        assert "\n" not in str(error) and str(error).endswith(".")


@settings(deadline=None)
@given(st.integers(1, 8).flatmap(lambda size: st.permutations(range(size))))
def test_a_formatted_proposal_reads_back(assignment):
    text = format_proposal(assignment)
    assert parse_proposal(text, len(assignment)) == tuple(assignment)
    assert parse_proposal(text.replace("\n", "<br/>"), len(assignment)) == tuple(assignment)
    assert text.splitlines()[:2] == ["Proposal:", f"BLEU: {REVIEWERS[assignment.index(0)]}"]


@pytest.mark.parametrize(
    "text",
    [
        "BLEU: Ava Li\nElectra: Sofia\nGloVe: Daniel",
        " **Proposal:**\n- **BLEU**: Ava\n- **Electra** - sofia patel\n- GloVe -> Danial\n",
        "Proposal:<br/>&emsp; - GloVe: Daniel Nguyen<br>&emsp; - BLEU: Ava Li<BR />&emsp; - Electra: Sofia",
        f"{PAPERS[0]}: Ava Li\n{PAPERS[1]}: Sofia Patel (80)\n{PAPERS[2]}: Daniel",
        f"Ava Li: BLEU\nSofia: {PAPERS[1]}\nDaniel: GloVe",
        "Proposal: BLEU: Ava Li\n\n2) Electra: Sofia\n3) GloVe = Daniel",
    ],
)
def test_a_proposal_may_be_written_in_many_ways(text):
    assert parse_proposal(text, 3) == (0, 2, 1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("BLEU: Ava\nElectra: Bob\nGloVe: Daniel", 'Line 2 of the proposal: "Bob" is not a reviewer'),
        ("BLEU: Ava\nGLUE: Sofia\nGloVe: Daniel", 'Line 2 .*"GLUE" is not a paper .* BLEU, Electra or GloVe'),
        ("BLEU: Ava\nElectra: Ava", "Line 2 of the proposal names Ava Li a second time"),
        ("BLEU: Ava\nbleu: Sofia", "Line 2 of the proposal names BLEU a second time"),
        ("BLEU: Ava", 'ends after line 1 of 3: a line "Paper: Reviewer" is missing for Electra and GloVe'),
        ("", "missing for BLEU, Electra and GloVe"),
        ("BLEU: Ava\nWhat do you think?", 'Line 2 .*does not read "Paper: Reviewer"'),
    ],
)
def test_an_invalid_proposal_is_refused_with_the_line(text, complaint):
    with pytest.raises(InvalidProposal, match=complaint):
        parse_proposal(f"Proposal:\n{text}", 3)


def test_every_proposal_of_the_human_games_is_read_as_recorded():
    games = [json.loads(line) for line in HUMAN_GAMES.read_text().splitlines()]
    proposals = [action for game in games for action in game["action_log"] if action["type"] == "proposal"]
    full = [action for action in proposals if len(action["proposal_ids"]) == 8]
    assert len(full) > 100
    for action in full:
        paper_of = dict(action["proposal_ids"])
        assert parse_proposal(action["proposal"], 8) == tuple(paper_of[reviewer] for reviewer in range(8))
