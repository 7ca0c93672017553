"""Exact arithmetic on untrusted text: a parser of its own, nothing is evaluated.

    sum     = product (("+" | "-") product)*
    product = factor (("*" | "/") factor)*
    factor  = ("+" | "-") factor | number | "(" sum ")"

There are no powers, so a result is at most about as long as the text.
"""

import re
from fractions import Fraction

MAX_CHARACTERS = 200
MAX_DEPTH = 40
_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+|[-+*/()])", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)", re.ASCII)


def evaluate(text: str) -> Fraction:
    """The value of an expression.

    Raises:
        ValueError: it is too long or no expression, or it divides by zero; the sentence says what.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"an expression may have at most {MAX_CHARACTERS} characters")
    return _Parser(text).whole()


def number(text: str) -> Fraction | None:
    """The number that a text consists of, if it is one: "-7", "2.50"."""
    text = text.strip()
    return Fraction(text) if len(text) <= MAX_CHARACTERS and _NUMBER.fullmatch(text) else None


def written(value: Fraction) -> str:
    """As a decimal number where that is exact, else as a fraction, "2/3"."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if value.denominator == 1 or rest != 1:
        return str(value)
    places = next(n for n in range(1, 4 * MAX_CHARACTERS) if 10**n % value.denominator == 0)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' * (value < 0)}{digits[:-places]}.{digits[-places:]}"


class _Parser:
    def __init__(self, text: str):
        self._tokens: list[str] = []
        place, text = 0, text.rstrip()
        while place < len(text):
            token = _TOKEN.match(text, place)
            if token is None:
                raise ValueError(
                    f"an expression has numbers, + - * / and parentheses, but no {text[place:].strip()[0]!r}"
                )
            self._tokens.append(token[1])
            place = token.end()
        self._place = self._depth = 0

    def whole(self) -> Fraction:
        value = self._sum()
        if self._next() is not None:
            raise ValueError(f"{self._next()!r} is not expected here")
        return value

    def _sum(self) -> Fraction:
        value = self._product()
        while self._next() in ("+", "-"):
            value = value + self._product() if self._take() == "+" else value - self._product()
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while self._next() in ("*", "/"):
            times, factor = self._take() == "*", self._factor()
            if not times and not factor:
                raise ValueError("it divides by zero")
            value = value * factor if times else value / factor
        return value

    def _factor(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"an expression may be nested at most {MAX_DEPTH} deep")
        token = self._take()
        if token in ("+", "-"):
            value = self._factor() * (-1 if token == "-" else 1)
        elif token == "(":
            value = self._sum()
            if self._take() != ")":
                raise ValueError("a parenthesis is not closed")
        elif token is None:
            raise ValueError("it ends where a number is expected")
        elif token in "*/)":
            raise ValueError(f"{token!r} is not expected here")
        else:
            value = Fraction(token)
        self._depth -= 1
        return value

    def _next(self) -> str | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _take(self) -> str | None:
        token = self._next()
        self._place += 1
        return token
