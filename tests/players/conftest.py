import asyncio

import pytest

from slim_rl.players.services import Services

KEY = "sk-test-4f9a77c1d2e"


@pytest.fixture
def run():
    """run(coroutine): its result; all of a test's coroutines have one event loop."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def services(run):
    """services(partner=config): in memory, or with ledgers in `folder`; closed after the test."""
    opened = []

    def start(*, run="test/0", folder=None, **configs) -> Services:
        opened.append(Services(configs, run, folder))
        return opened[-1]

    yield start
    for one in opened:
        run(one.close())


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return KEY
