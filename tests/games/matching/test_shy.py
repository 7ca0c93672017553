"""The turn in a chat model's reply."""

import pytest

from slim_rl.games.matching.partner import one_turn

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
    ],
)
def test_one_turn_is_found_in_a_reply(heard, said, turn):
    assert one_turn(heard, said) == turn


@pytest.mark.parametrize(
    ("heard", "said", "reason"),
    [
        (HELLO, "  ", "Your turn is empty"),
        (HELLO, "[accept]", "no proposal to answer"),
        (HELLO, "[propose] BLEU: Ava Li", "you make none"),
        (PROPOSAL, "[accept] or [reject]?", r"with \[accept\] or \[reject\] alone"),
        (PROPOSAL, "I do not accept.", r"with \[accept\] or \[reject\] alone"),
    ],
)
def test_a_reply_without_a_turn_is_refused_with_what_would_be_right(heard, said, reason):
    with pytest.raises(ValueError, match=reason):
        one_turn(heard, said)
