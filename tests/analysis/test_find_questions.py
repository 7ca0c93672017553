"""Which questions a message asks, of what kind, and what became of them in their episode."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.kinds_data import drawn, people, read, varied, written
from benchmarks.questions import counts, in_context, kinds, question_or_not, read_labelled
from slim_rl.analysis.kinds import KINDS, WEIGHTS, Model
from slim_rl.analysis.questions import classify, find_questions
from slim_rl.config import MatchingConfig
from slim_rl.games.matching import load_game
from slim_rl.games.matching.scripted import reference_player, shy_partner

LABELS = Path(__file__).parent / "questions"
AGENT, PARTNER = "player-1", "player-2"
TAKEN_FOR_A_PROPOSAL = pytest.mark.xfail(
    strict=True,
    reason="names a reviewer alone, yet is taken for a proposal: tests/analysis/questions/GUIDELINE.md",
)


def found(text):
    return [(question.kind, question.text) for question in find_questions(text)]


@pytest.mark.parametrize(
    ("part", "question_or_not_f1", "kinds_f1"),
    [
        *((f"development{number}", 0.97, 0.95) for number in ("", "-2", "-3", "-4", "-5")),
        ("unseen", 0.95, 0.7),  # a floor to notice damage by, below what was measured
    ],
)
def test_people_are_read_as_labelled(part, question_or_not_f1, kinds_f1):
    messages = read_labelled(LABELS / f"{part}.jsonl")
    f1, _, _ = question_or_not(messages, lambda message: bool(in_context(message)))
    assert f1 >= question_or_not_f1
    assert kinds(counts(messages, in_context).sum(0)).mean() >= kinds_f1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("What is Ava Li's score for BLEU?", "specific"),
        ("tell me Ava's score for BLEU", "specific"),
        ("Thanks. I need Ava's score on BLEU.", "specific"),
        ("how good is daniel at electra", "specific"),
        ("I have 80 for Ava on BLEU, what about you?", "specific"),
        ("What do you have for Ethan?", "reviewer"),
        ("any greens for Ava", "reviewer"),
        ("Who would be good for Electra?", "paper"),
        ("Do you have any good options for SWAG besides Sofia?", "paper"),
        ("What are yours?", "general"),
        ("Please share your best scores.", "general"),
        ("Should we put Ava on BLEU?", "proposal"),
        ("Joseph for RoBERTa?", "proposal"),
        ("I think Ava on BLEU and Daniel on GloVe. What do you think?", "proposal"),
        ("Does that work for you?", "proposal"),
        ("Good?", "proposal"),
        ("Hi, how are you doing?", "social"),
        ("first game?", "social"),
        ("I'm doing well, how about yourself?", "social"),
        ("how is Jo on Gleu", "specific"),  # short forms and slips
        ("LLaMA - who do you have?", "paper"),  # what stands before the clause
        ("Andrei is dark green on GLUE. What do you have there?", "specific"),
        pytest.param("Alright, Morgan then?", "reviewer", marks=TAKEN_FOR_A_PROPOSAL),
        ("Anywhere we can place Andrei?", "reviewer"),
        ("Could Daniel do it?", "proposal"),
        ("How about we swap Ava and Noah?", "proposal"),
        ("what are your proposals?", "general"),
        ("Do you have any greens for Mr. Petrov?", "reviewer"),
        ("What about\nAva?", "reviewer"),
        ("is Ava good\nat Quac or Electra", "specific"),
    ],
)
def test_kinds(text, kind):
    assert [k for k, _ in found(text)] == [kind]


@pytest.mark.parametrize(
    "text",
    [
        "Ava is 57 on BLEU.",
        "I do not know Ava's score for BLEU.",
        "Ava is best for BLEU, right?",
        "so Ava on GLUE ok?",
        "Who knows?",
        'You asked "What is Ava\'s score for BLEU?" and I do not know.',
        "let's put Ava on Electra",
        "ok send a proposal then",
        "What a great idea!",
        "For Electra I really don't know who would be a good reviewer.",
        "Whatever you want",
        "could happen but Daniel is also nice for it",
        "",
    ],
)
def test_what_seeks_no_answer_is_no_question(text):
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "questions"),
    [
        ("What is Ava's score for BLEU? And Daniel's for GloVe?", 2),
        ("what's your highest on any paper left, and who fits with it?", 2),
        ("Daniel and Morgan?", 1),
        ("Please tell me your scores for:\n- Ava Li: BLEU\n- Daniel: GloVe\nThanks!", 1),
        ("How do you feel about Daniel being placed / in GLUE?", 1),
    ],
)
def test_several_questions_count_one_by_one(text, questions):
    assert len(found(text)) == questions


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        ("1. Do RoBERTa and QuAC have anyone green?", "Do RoBERTa and QuAC have anyone green?"),
        ("Ava is fine, couldn't you take Noah?", "couldn't you take Noah?"),
        ("Fair. But is Noah someone you were planning on?", "is Noah someone you were planning on?"),
        (
            "\u0130 SEE. AND HOW GOOD IS AVA AT BLEU",
            "HOW GOOD IS AVA AT BLEU",
        ),  # \u0130 is two signs in lower case
    ],
)
def test_where_a_question_begins(text, clause):
    assert [question.text for question in find_questions(text)] == [clause]


def test_patterns_draw_whole_questions():
    for line in (LABELS / "written" / "patterns.txt").read_text().splitlines():
        kind, pattern = line.split(": ", 1)
        assert kind in KINDS
        for seed in range(5):
            assert not set("(){}|") & set(drawn(pattern, Random(seed))), line


def test_the_weights_are_those_of_the_features():
    """Whoever changes what the model reads fits it again, or what it has learnt is never asked for."""
    produced = Counter(feature for question, _ in [*people(), *written()] for feature in {*read(question)})
    known = {*Model.load(WEIGHTS).known}
    common = {feature for feature, times in produced.items() if times >= 30}
    assert len(common) > 1000
    assert common <= known
    made = {(feature[0], len(feature)) for feature in produced if feature[0].startswith("=")}
    assert {(feature[0], len(feature)) for feature in known if feature[0].startswith("=")} == made


def test_variations_are_whole_questions_and_the_same_each_time():
    asked = [question for question, _ in people()]
    first, again = ([*varied(asked, lambda word: ["so", "green"], 200)] for _ in range(2))
    assert first == again
    assert len({question.clause for question in first} - {question.clause for question in asked}) > 50
    for question in first:
        assert question.clause.strip()
        assert question.end == len(question.text)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("I have 80 for Ava on BLEU, what about you?", {(0, 0)}),
        ("I think Ava on BLEU is best. How good is Daniel there?", {(1, 0)}),
    ],
)
def test_what_a_question_leaves_out_the_sentence_before_says(text, pairs):
    [question] = find_questions(text)
    assert (question.kind, set(question.pairs)) == ("specific", pairs)


def test_a_question_knows_its_place_and_its_pairs():
    text = "I have none. / What are Ava's scores for BLEU and GloVe?"
    [question] = find_questions(text)
    assert question.pairs == ((0, 0), (0, 2))
    assert text[question.start :].startswith(question.text) and question.text.startswith("What")


@pytest.mark.parametrize(
    "word", ["and so ", "ok, ", "so ", "is ", "what ", "Ava and ", "please ", "which of the ", "maybe ", "- "]
)
def test_a_policy_that_repeats_itself_can_be_read(word):
    """Readings that multiply with each word would not end, above all where nothing asks behind them."""
    for last in ("what about Ava?", "zebra is?", "zebra is"):
        assert len(find_questions(word * 200 + last)) <= 2


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_can_be_read(text):
    for question in find_questions(text):
        assert text[question.start : question.start + len(question.text)] == question.text


def test_names_of_another_game_bring_their_own_finder():
    [question] = find_questions("How many ships are at Jutland?", find_names=lambda text: [])
    assert question.kind == "general"


@pytest.mark.parametrize(
    ("turns", "kind"),
    [
        (["[message] light green for Andrei", "[message] For what?"], "reviewer"),
        (["[message] Ethan is good on QuAC", "[message] how good?"], "specific"),
        (["[message] Electra is hard", "[message] Sorry, for who?"], "paper"),
        (["[message] Andrei is hard to place", "[message] Sorry, for what?"], "reviewer"),
        (["[propose] BLEU: Ava Li", "[message] What do you think?"], "proposal"),
        (["[message] My board is nearly empty", "[message] What do you think?"], "general"),
        (["[message] Hello", "[message] Which ones?"], "general"),
        (["[message] How about Joseph", "[message] roberta?"], "proposal"),
        (
            ["[propose] BLEU: Ava Li", "[reject]", "[message] Some are wrong", "[message] Which ones?"],
            "proposal",
        ),
        (["[message] How about Joseph", "[message] Ethan?"], "reviewer"),
        (["[message] Daniel is great on BLEU", "[message] Better than Sofia?"], "specific"),
        (["[message] I like Daniel on BLEU", "[message] Ok. Is that the same on your end?"], "specific"),
    ],
)
def test_what_a_question_leaves_unsaid_is_sought_in_the_turns_before(turns, kind):
    said = [*((PARTNER, turn) for turn in turns[:-1]), (AGENT, turns[-1])]
    [asked] = classify(said, AGENT, seen={})
    assert asked.question.kind == kind


SEEN = {AGENT: {(0, 0)}, PARTNER: {(0, 0), (0, 1), (1, 1)}}


def uses(*dialogue):
    """By question: what became of it; turns alternate, the agent begins."""
    turns = [(AGENT if i % 2 == 0 else PARTNER, text) for i, text in enumerate(dialogue)]
    return [
        {name for name in asked._fields[2:] if getattr(asked, name)} for asked in classify(turns, AGENT, SEEN)
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
    ) == [
        {"useful", "answered", "with_number"},
        {"repeated", "answered"},
        {"known", "answered", "with_number"},
        {"useful", "unanswerable"},
        set(),
    ]


def test_each_of_several_questions_has_its_own_answer():
    assert uses(
        "[message] What is Ava Li's score for Electra? What is Sofia Patel's score for QuAC?",
        "[message] Ava Li's score for Electra is 57. I do not know Sofia Patel's score for QuAC.",
    ) == [{"useful", "answered", "with_number"}, {"useful", "unanswerable"}]


def test_the_game_and_the_analysis_count_alike_what_scripts_ask(games):
    """They read messages by different rules; on plain questions they must agree."""
    for game in games:
        played = load_game(game, max_turns=20)
        players = {
            AGENT: reference_player("asks-7-random", played, MatchingConfig(), 0),
            PARTNER: shy_partner(played, PARTNER, True),
        }
        views = {seat: played.view(seat).mask for seat in players}
        turns = []
        while seat := played.turn:
            turns.append((seat, players[seat].turn(played.observe(seat))))
            played.step(turns[-1][1])
        seen = {s: {(r, p) for r in range(3) for p in range(3) if mask[r, p]} for s, mask in views.items()}
        asked, facts = classify(turns, AGENT, seen), played.facts()
        counts = Counter(name for a in asked for name in ("useful", "with_number") if getattr(a, name))
        assert len(asked) == facts[f"{AGENT}.questions"] > 0
        assert counts["useful"] == facts[f"{AGENT}.useful_questions"]
        assert counts["with_number"] == facts[f"{AGENT}.answers"]
