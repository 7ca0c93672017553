"""Append-only log of a service's calls: cost and reply, so that no reply is paid for twice."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, repeat
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import yaml

from slim_rl.core.errors import UserError
from slim_rl.players.config import Price
from slim_rl.runtime.journal import Journal, read_lines

PRICES = Path(__file__).with_name("prices.yaml")
Bought = tuple[str, Sequence[Any]]
"""A reply and the key it is kept by."""


def price_of(model: str) -> Price | None:
    """The listed price of `model`, or of the model that it is a dated version of; None if there is none.

    Raises:
        UserError: the price list cannot be read.
    """
    try:
        table = yaml.safe_load(PRICES.read_text(encoding="utf-8"))
        prices = {name: Price(**row) for name, row in table.items()}
    except (OSError, yaml.YAMLError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{PRICES} is not a price list (prompt, cached_prompt and completion for each model): {error}."
        ) from None
    # "gpt-4.1-2025-04-14" is a version of gpt-4.1; "gpt-4.1-mini" is not.
    versions = [name for name in prices if model == name or model.startswith(f"{name}-2")]
    return prices[max(versions, key=len)] if versions else None


class Ledger:
    """The calls to one service: totals of this run, interrupted parts included, and the replies of all runs.

    A call has two lines: one before it is sent, with the most that it can cost, and one for what it did cost, with its
    reply. So a reply that was paid for is found again after a kill, and a call that the kill cut off stays in the bill.

    Args:
        path: gets the JSON lines; None keeps everything in memory.
        price: None if it is unknown; then `dollars` stays 0.
        run: names the run, such as "evaluate/0f3a...". Every line has the name of its run.

    Raises:
        UserError: lines of the file are damaged.
    """

    def __init__(self, path: Path | None, price: Price | None, run: str):
        self.price = price
        self.totals: Counter[str] = Counter()
        """Use by this run: `calls`, `prompt_tokens`, `cached_tokens`, `completion_tokens`, `trained_tokens`, `dollars`,
        and the number of calls or replies by outcome (`RateLimitError`, `repaired_turns`, `asked_again`, ...).
        `unanswered` calls are under way or were cut off; their `dollars` are the most that they can cost."""
        self.replies: dict[str, Sequence[Any]] = {}
        """By key."""
        self._run, self._path = run, path
        self._journal: Journal | None = None
        self._ids = map("{}-{}".format, repeat(token_hex(4)), count())
        lines = read_lines(path, _line, _loss) if path is not None else []
        once = {line.id or number: line for number, line in enumerate(lines)}  # also a line that was doubled
        for line in once.values():
            self._count(line.reply, line.entry if line.run == run else {})

    def add(self, reply: Bought | None = None, /, **entry: float) -> None:
        """Add a line.

        Args:
            reply: is found in `replies` from now on.
            entry: numbers to be added to the totals, by name.
        """
        line: dict[str, Any] = {"id": next(self._ids), "run": self._run, **entry, **({"reply": reply} if reply else {})}
        self._count(reply, entry)
        if self._path is not None:
            self._journal = self._journal or Journal(self._path)
            self._journal.append(line)

    def most_dollars(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The most that a call of so many tokens can cost."""
        return self.price.dollars(prompt_tokens, 0, completion_tokens) if self.price else 0.0

    def begin(self, prompt_tokens: int, completion_tokens: int) -> "Call":
        """Count a call that is about to be sent, with the most tokens that it can have."""
        call = Call(self, prompt_tokens, completion_tokens, self.most_dollars(prompt_tokens, completion_tokens))
        self.add(calls=1, unanswered=1, dollars=call.dollars)
        return call

    def bill(self) -> dict[str, float]:
        """The totals that are not 0; no `dollars` where the price is unknown."""
        totals: dict[str, float] = {name: round(number, 6) for name, number in self.totals.items()}
        if self.price is None:
            totals.pop("dollars", None)
        if not totals.get("unanswered"):
            totals.pop("unanswered", None)
        return totals

    def status(self) -> str:
        """A progress-bar suffix; empty before any call."""
        totals = self.totals
        if not totals:
            return ""
        tokens = sum(totals[f"{kind}_tokens"] for kind in ("prompt", "completion", "trained"))
        cost = f", ${totals['dollars']:.2f}" if self.price else ""
        return f"{totals['calls']} calls, {tokens / 1000:.0f}k tokens{cost}"

    def _count(self, reply: Bought | None, entry: Mapping[str, float]) -> None:
        if reply is not None:
            key, bought = reply
            self.replies[key] = bought
        self.totals.update(entry)


@dataclass(frozen=True)
class Call:
    """A call that was counted before it was sent. One of these methods follows, once; `outcome` is counted."""

    ledger: Ledger
    prompt_tokens: int
    completion_tokens: int
    dollars: float

    def answered(
        self,
        prompt_tokens: int,
        cached_tokens: int,
        completion_tokens: int,
        reply: Bought | None = None,
        **outcome: int,
    ) -> None:
        """It cost so many tokens."""
        price = self.ledger.price
        dollars = price.dollars(prompt_tokens, cached_tokens, completion_tokens) if price else 0.0
        self.ledger.add(
            reply,
            unanswered=-1,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            completion_tokens=completion_tokens,
            dollars=dollars - self.dollars,
            **outcome,
        )

    def free(self, reply: Bought | None = None, /, **outcome: int) -> None:
        """It costs nothing."""
        self.ledger.add(reply, unanswered=-1, dollars=-self.dollars, **outcome)

    def unseen(self, reply: Bought | None = None, /, **outcome: int) -> None:
        """It was sent, and no answer came that says what it costs. It may have to be paid, so the most counts."""
        if self.ledger.price:
            self.answered(self.prompt_tokens, 0, self.completion_tokens, reply, estimated_calls=1, **outcome)
        else:
            self.free(reply, **outcome)


class _Line(NamedTuple):
    id: str | None
    run: str | None
    reply: Bought | None
    entry: dict[str, float]


def _line(value: Any) -> _Line:
    """Raises TypeError or ValueError: it is no line of a ledger."""
    if not isinstance(value, dict):
        raise TypeError
    line_id, run, reply = (value.pop(name, None) for name in ("id", "run", "reply"))
    if reply is not None:
        key, (text, *_) = reply
        if not (isinstance(key, str) and isinstance(text, str)):
            raise TypeError
    if not all(isinstance(number, int | float) for number in value.values()):
        raise TypeError
    return _Line(line_id, run, reply, value)


def _loss(lines: Sequence[_Line], damaged: int) -> str:
    bought = sum(line.reply is not None for line in lines)
    each = sum(line.entry.get("dollars", 0.0) for line in lines) / max(bought, 1)
    return (
        f"Up to {damaged} paid replies would be bought again, for about ${damaged * each:.4f}, and the budget would not "
        "know what they cost."
    )
