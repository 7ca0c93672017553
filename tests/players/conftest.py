"""A partner behind a real HTTP server, in a process of its own."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from slim_rl.config import PartnerConfig

ROOT = Path(__file__).parents[2]
KEY = "sk-test-4f9a77c1d2e"


class Server:
    def __init__(self, *arguments: str):
        command = [sys.executable, ROOT / "tests/players/server.py", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.url = self.process.stdout.readline().strip()
        self.base_url = f"{self.url}/v1"

    def counts(self) -> dict:
        with urllib.request.urlopen(f"{self.url}/counts") as reply:
            return json.load(reply)

    def config(self, **changes) -> PartnerConfig:
        """Without limits, so that a test says which one it is about."""
        values = dict(
            kind="chat", base_url=self.base_url, timeout_seconds=1.0,
            max_requests_per_minute=None, max_tokens_per_minute=None,
        )  # fmt: skip
        return PartnerConfig(**{**values, **changes})


@pytest.fixture
def serve():
    """serve("--faults", "0.3") starts a server; all end with the test."""
    servers: list[Server] = []

    def start(*arguments: str) -> Server:
        servers.append(Server(*arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()
        server.process.stdout.close()


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return KEY
