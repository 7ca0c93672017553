"""Checks that the seated services answer. Without services it does nothing."""

import asyncio

from slim_rl.config import Config, checked, composed
from slim_rl.players.services import Services, ledgers
from slim_rl.runtime.cli import run_stage
from slim_rl.runtime.code import fingerprint
from stages.dependencies import SECTIONS, values


def main() -> None:
    check(checked(composed(), "params.yaml"))


def check(config: Config) -> None:
    """Call each service that has a seat once. Raises UserError: a key is missing or wrong, or no service is there."""
    names = [name.removeprefix("service:") for name in sorted(config.players) if name.startswith("service:")]

    async def call() -> None:
        async with Services(config.services, run="check", folder=None) as services:
            await services.check(names)

    asyncio.run(call())


def services_of(config: Config, stage: str) -> Services:
    """The services of a run of `stage`. The parameters of this and the earlier stages name the run, not the code: an edit
    resets no budget."""
    before = list(SECTIONS)[: list(SECTIONS).index(stage) + 1]
    return Services(config.services, f"{stage}/{fingerprint(*(values(name, config) for name in before))}", ledgers())


if __name__ == "__main__":
    run_stage(main, __doc__)
