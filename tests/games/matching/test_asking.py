"""What became of a seat's questions in its episode."""

from collections import Counter

from slim_rl.games.matching.asking import classify
from slim_rl.games.matching.scripted import ShyPartner, reference_player

AGENT, PARTNER = "player-1", "player-2"
SIZE = 8
USES = ("useful", "known", "repeated", "unanswerable", "with_number")
SEEN = {AGENT: {(0, 0)}, PARTNER: {(0, 0), (0, 1), (1, 1)}}


def uses(*dialogue):
    """By question: what became of it; turns alternate, the agent begins."""
    turns = [(AGENT if i % 2 == 0 else PARTNER, text) for i, text in enumerate(dialogue)]
    return [{use for use in USES if getattr(asked, use)} for asked in classify(turns, AGENT, SEEN, SIZE)]


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
            PARTNER: ShyPartner(played.view(PARTNER), matching.parameters, played.limits, seed=0),
        }
        views = {seat: played.view(seat).mask for seat in players}
        turns = []
        while seat := played.turn:
            turns.append((seat, players[seat].turn(played.observe(seat))))
            played.step(turns[-1][1])
        seen = {s: {(r, p) for r in range(3) for p in range(3) if mask[r, p]} for s, mask in views.items()}
        asked, metrics = classify(turns, AGENT, seen, 3), played.metrics()
        counts = Counter(name for a in asked for name in ("useful", "with_number") if getattr(a, name))
        assert len(asked) == metrics[f"{AGENT}.cells_asked"] > 0
        assert counts["useful"] == metrics[f"{AGENT}.useful_cells"]
        assert counts["with_number"] == metrics[f"{AGENT}.answers"]
