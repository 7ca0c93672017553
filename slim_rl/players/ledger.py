"""Append-only log of a service's calls: cost and reply, so that no reply is paid for twice."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

    A call's cost and its reply are one line, so a reply that was paid for is found again after a kill.

    Args:
        path: gets a JSON line for each call; None keeps everything in memory.
        price: None if it is unknown; then `dollars` stays 0.
        run: names the run, such as "evaluate/0f3a...". Every line has the name of its run.
    """

    def __init__(self, path: Path | None, price: Price | None, run: str):
        self.price = price
        self.totals: Counter[str] = Counter()
        """Of this run: `calls`, `prompt_tokens`, `cached_tokens`, `completion_tokens`, `dollars`, and the number of
        calls or replies by outcome (`RateLimitError`, `repaired_turns`, `asked_again`, ...)."""
        self.replies: dict[str, Sequence[Any]] = {}
        """By key."""
        self._run, self._path = run, path
        self._journal: Journal | None = None
        for line in read_lines(path) if path is not None else ():
            reply, of = line.pop("reply", None), line.pop("run", None)
            self._count(reply, line if of == run else {})

    def add(self, reply: Bought | None = None, /, **entry: float) -> None:
        """Add a line.

        Args:
            reply: is found in `replies` from now on.
            entry: numbers to be added to the totals, by name.
        """
        line: dict[str, Any] = {"run": self._run, **entry, **({"reply": reply} if reply else {})}
        self._count(reply, entry)
        if self._path is not None:
            self._journal = self._journal or Journal(self._path)
            self._journal.append(line)

    def add_call(
        self, prompt_tokens: int, cached_tokens: int, completion_tokens: int, reply: Bought | None = None
    ) -> None:
        dollars = self.price.dollars(prompt_tokens, cached_tokens, completion_tokens) if self.price else 0.0
        self.add(
            reply,
            calls=1,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            completion_tokens=completion_tokens,
            dollars=dollars,
        )

    def bill(self) -> dict[str, float]:
        """The totals; no `dollars` where the price is unknown."""
        totals: dict[str, float] = {name: round(number, 6) for name, number in self.totals.items()}
        if self.price is None:
            totals.pop("dollars", None)
        return totals

    def _count(self, reply: Bought | None, entry: dict[str, Any]) -> None:
        if reply is not None:
            key, bought = reply
            self.replies[key] = bought
        for name, number in entry.items():
            self.totals[name] += number
