"""Whatever happens to the lines of a ledger: no reply is bought again and no cost forgotten without a sentence."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.core.errors import UserError
from slim_rl.players.config import Price
from slim_rl.players.ledger import Ledger

PRICE = Price(prompt=10, cached_prompt=0, completion=100)
numbers = st.integers(0, 10**6)
shapes = st.sampled_from(
    [b"7", b"[1]", b"null", b'"a"', b'{"calls": "x"}', b'{"reply": [1]}', b'{"reply": [1, [2]]}', b"{"]
)


def cut(lines, a, b, shape):
    line = lines[a % len(lines)]
    lines[a % len(lines)] = line[: 1 + b % (len(line) - 1)]


def swap(lines, a, b, shape):
    i, j = a % len(lines), b % len(lines)
    lines[i], lines[j] = lines[j], lines[i]


def double(lines, a, b, shape):
    lines.insert(b % (len(lines) + 1), lines[a % len(lines)])


def replace(lines, a, b, shape):
    lines[a % len(lines)] = shape


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from([cut, swap, double, replace]), numbers, numbers, shapes), min_size=1, max_size=5
    ),
    st.integers(1, 10**6),
)
def test_lines_of_a_ledger_are_damaged_in_any_way(damages, torn):
    with TemporaryDirectory() as name:
        path = Path(name, "partner.jsonl")
        ledger = Ledger(path, PRICE, "r")
        for number in range(5):
            ledger.begin(300, 120).answered(300, 0, 12, (str(number), ["Hello.", False]))
            ledger.begin(300, 120).free(RateLimitError=1)
        before = ledger.bill()
        lines = [line for line in path.read_bytes().split(b"\n") if line]
        for damage, *arguments in damages:
            damage(lines, *arguments)
        last = lines[0][: torn % len(lines[0])]  # a kill cut it off
        path.write_bytes(b"".join(b"\n" + line + b"\n" for line in lines) + b"\n" + last)
        try:
            after = Ledger(path, PRICE, "r")
        except UserError as error:
            assert str(error).startswith(f"{path} is damaged in line ")
        else:
            assert set(after.replies) == set("01234")
            assert after.bill() == {**before, "dollars": pytest.approx(before["dollars"])}
