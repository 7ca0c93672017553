"""What a partner's API has cost and said: a line a call on disk, so that no interruption makes it paid again."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slim_rl.errors import UserError
from slim_rl.journal import Journal, read_lines

PRICES = Path("conf/prices.yaml")
Bought = tuple[str, Sequence[Any]]
"""A reply, and the name under which it is kept."""


@dataclass(frozen=True)
class Price:
    """Dollars for a million tokens."""

    prompt: float
    cached_prompt: float
    completion: float

    def dollars(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        return (
            (prompt_tokens - cached_tokens) * self.prompt
            + cached_tokens * self.cached_prompt
            + completion_tokens * self.completion
        ) / 1e6


def price_of(model: str, path: Path = PRICES) -> Price | None:
    """What the table says of `model`, or of the model that it is a dated version of; None if nothing.

    Raises:
        UserError: the table cannot be read.
    """
    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
        prices = {name: Price(**row) for name, row in table.items()}
    except FileNotFoundError:
        return None
    except (OSError, yaml.YAMLError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is not a table of prices (prompt, cached_prompt and completion for each model): {error}."
        ) from None
    # "gpt-4.1-2025-04-14" is a gpt-4.1, "gpt-4.1-mini" is not.
    versions = [name for name in prices if model == name or model.startswith(f"{name}-2")]
    return prices[max(versions, key=len)] if versions else None


class Ledger:
    """Sums over all calls and the replies that they bought, those before an interruption too.

    A call's cost and its reply are one line, so a reply that was paid for is there to be heard again, by the
    dialogue that a killed process did not bring to its end.

    Args:
        path: gets a line a call, as JSON; None keeps everything in memory alone.
        price: None if it is not known; then `dollars` stays 0.
    """

    def __init__(self, path: Path | None, price: Price | None):
        self.price = price
        self.totals: Counter[str] = Counter()
        """`calls`, `prompt_tokens`, `cached_tokens`, `completion_tokens`, `dollars`, and how many calls or
        replies came to each other end (`RateLimitError`, `mended`, `asked_again`, …)."""
        self.replies: dict[str, Sequence[Any]] = {}
        """What was said, by name."""
        for line in read_lines(path) if path is not None else ():
            self._add(**line)
        self._journal = Journal(path) if path is not None else None

    def add(self, reply: Bought | None = None, **entry: Any) -> None:
        """Note a call or what became of a reply.

        Args:
            reply: what was said, to be found in `replies`.
            entry: numbers to be added to the totals, by name.
        """
        self._add(reply, **entry)
        if self._journal is not None:
            self._journal.append({**entry, "reply": reply} if reply else entry)

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

    def _add(self, reply: Bought | None = None, **entry: Any) -> None:
        if reply is not None:
            name, bought = reply
            self.replies[name] = bought
        for name, number in entry.items():
            self.totals[name] += number
