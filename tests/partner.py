"""A service behind a real HTTP server, in a process of its own: a partner, or a judge."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from slim_rl.players.config import ServiceConfig

SERVER = Path(__file__).parents[1] / "fixtures/partner_server.py"


class PartnerServer:
    """Started with the arguments of `fixtures/partner_server.py`."""

    def __init__(self, *arguments: str):
        self.process = subprocess.Popen([sys.executable, SERVER, *arguments], stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        self.base_url = f"{self.url}/v1"

    def start_over(self, *arguments: str) -> None:
        """With these arguments, and with counts from 0."""
        body = json.dumps(arguments).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/options", body), timeout=60).close()

    def counts(self) -> dict:
        with urllib.request.urlopen(f"{self.url}/counts") as reply:
            return json.load(reply)

    def config(self, **changes) -> ServiceConfig:
        """Without limits, so that a test says which one it is about."""
        values = dict(
            base_url=self.base_url, timeout_seconds=1.0, max_requests_per_minute=None, max_tokens_per_minute=None,
        )  # fmt: skip
        return ServiceConfig(**{**values, **changes})

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
