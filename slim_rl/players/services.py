"""Models behind an API, by name."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from slim_rl.core.errors import UserError
from slim_rl.players.config import ServiceConfig
from slim_rl.players.ledger import Ledger, price_of
from slim_rl.runtime.code import work_root

if TYPE_CHECKING:
    from slim_rl.players.chat import ChatService


def ledgers() -> Path:
    """The folder of the ledgers."""
    return work_root() / "services"


class Services:
    """The services of one run, for one event loop. Each is opened when it is first needed.

    The ledger of a service, `folder/NAME.jsonl`, is shared by all runs: a reply is kept by its dialogue and never paid
    for twice. Budget and bill count the calls of this run alone.

    Args:
        run: names the run, such as "evaluate/0f3a...". A resumed run needs the same name.
        folder: None keeps the ledgers in memory.
    """

    def __init__(self, configs: Mapping[str, ServiceConfig], run: str, folder: Path | None):
        self._configs, self._run, self._folder = configs, run, folder
        self._open: dict[str, ChatService] = {}
        self._closed = False

    def __getitem__(self, name: str) -> "ChatService":
        """Raises UserError if the service cannot be used, see `ChatService`, or if they are closed."""
        from slim_rl.players.chat import ChatService  # a run without services does not wait for its libraries

        if self._closed:
            raise UserError(f"The service {name} is closed.")
        if name not in self._open:
            self._open[name] = ChatService(name, self._configs[name], self._ledger(name))
        return self._open[name]

    async def check(self, names: Iterable[str]) -> None:
        """Call each of these services once. Raises UserError if one cannot be used."""
        for name in names:
            await self[name].check()

    def status(self) -> str:
        """A progress-bar suffix: calls and cost. Empty before any call."""
        each = {name: status for name, service in self._open.items() if (status := service.ledger.status())}
        return "; ".join(each.values() if len(each) == 1 else map(": ".join, each.items()))

    def bills(self) -> dict[str, dict[str, Any]]:
        """By service, its model and the totals of this run's calls; see `Ledger.totals`."""
        bills = {}
        for name, config in self._configs.items():
            # An earlier process of this run may have made all its calls.
            ledger = self._open[name].ledger if name in self._open else self._ledger(name)
            if ledger.totals:
                bills[name] = {"model": config.model, **ledger.bill()}
        return bills

    async def close(self) -> None:
        """Close them all for good; see `ChatService.close`."""
        self._closed = True
        await asyncio.gather(*(service.close() for service in self._open.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _ledger(self, name: str) -> Ledger:
        path, config = None if self._folder is None else self._folder / f"{name}.jsonl", self._configs[name]
        return Ledger(path, config.price or price_of(config.model), self._run)
