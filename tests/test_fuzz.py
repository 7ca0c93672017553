"""Some mutations of answers and files, the same ones each time; `python -m tests.fuzz` tries thousands."""

import pytest

from tests.fuzz import fuzz, targets

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("target", targets())
def test_what_is_damaged_is_refused_in_a_sentence_or_read_as_what_it_says(target):
    slow = target == "params" or target.startswith("checkpoint")
    read, refused, failures = fuzz(target, 40 if slow else 120)
    assert not failures
    assert read + refused >= 40 and read
