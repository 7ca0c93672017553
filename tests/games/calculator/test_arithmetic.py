"""The calculator's arithmetic: exact, and harmless whatever it is given."""

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slim_rl.games.calculator.arithmetic import MAX_CHARACTERS, evaluate, number, written

LEAVES = st.integers(0, 999).map(lambda n: (str(n), Fraction(n))) | st.sampled_from(
    [("0.5", Fraction(1, 2)), (".25", Fraction(1, 4)), ("12.5", Fraction(25, 2))]
)


def combined(parts):
    def joined(left, sign, right, space):
        value = {"+": left[1] + right[1], "-": left[1] - right[1], "*": left[1] * right[1]}.get(sign)
        value = left[1] / (right[1] or 1) if value is None else value
        right = right if right[1] or sign != "/" else ("1", Fraction(1))
        return f"({left[0]}{space}{sign}{space}{right[0]})", value

    return st.builds(joined, parts, st.sampled_from("+-*/"), parts, st.sampled_from(["", " "]))


@given(st.recursive(LEAVES, combined, max_leaves=12).filter(lambda pair: len(pair[0]) <= MAX_CHARACTERS))
def test_a_tree_of_parentheses_has_its_exact_value(pair):
    assert evaluate(pair[0]) == pair[1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("10 - 4 - 3", "3"),
        ("12 / 4 / 3", "1"),
        ("2 / 3", "2/3"),
        ("1 / 8", "0.125"),
        ("-1 / 40", "-0.025"),
        ("-(3 - 5) * --2", "4"),
        ("0.1 + 0.2", "0.3"),
        (" 7\n", "7"),
    ],
)
def test_signs_order_and_form_of_the_result(text, value):
    assert written(evaluate(text)) == value


@pytest.mark.parametrize(
    "text",
    ["", "(", "1 +", "1 2", ")", "()", "1 / 0", "1 / (2 - 2)", "2 ** 3", "1e9", "__import__('os')", "x", "1_0", "٣",
     "1..2", "9" * (MAX_CHARACTERS + 1), "(" * 100 + "1" + ")" * 100, "-" * 100 + "1"],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(ValueError):
        evaluate(text)


@given(st.text(st.sampled_from("0123456789+-*/(). \n"), max_size=40) | st.text(max_size=30))
def test_any_text_has_a_value_or_is_refused(text):
    with suppress(ValueError):
        written(evaluate(text))


@pytest.mark.parametrize(("text", "value"), [("7", 7), (" -7.50 ", -7.5), ("+3", 3)])
def test_an_answer_is_a_number(text, value):
    assert number(text) == Fraction(value)


@pytest.mark.parametrize("text", ["", "seven", "It is 7", "7 8", "1/2", "1e999999999", "nan", "٣", "9" * 5000])
def test_an_answer_that_is_no_number_alone_is_none(text):
    assert number(text) is None
