"""What became of a seat's questions in its episode."""

from slim_rl.games.matching.reader import classify
from slim_rl.games.matching.scripted import ShyPartner, reference_player

AGENT, PARTNER = "player-1", "player-2"
SIZE = 8
USES = ("known", "repeated", "with_number")
SEEN = {(0, 0)}


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
    ) == [{"with_number"}, {"repeated"}, {"known", "with_number"}, set()]


def test_what_answers_a_question():
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
        assert len(asked) == metrics[f"{AGENT}.cells_asked"] > 0
        assert sum(not (a.known or a.repeated) for a in asked) == metrics[f"{AGENT}.useful_cells"]
        assert sum(a.with_number for a in asked) == metrics[f"{AGENT}.answers"]
