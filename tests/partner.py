"""A partner behind a real HTTP server, in a process of its own."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

SERVER = Path(__file__).parent / "players/server.py"


class PartnerServer:
    """Started with the arguments of `tests/players/server.py`."""

    def __init__(self, *arguments: str):
        self.process = subprocess.Popen(
            [sys.executable, SERVER, *arguments], stdout=subprocess.PIPE, text=True
        )
        self.url = self.process.stdout.readline().strip()
        self.base_url = f"{self.url}/v1"

    def counts(self) -> dict:
        with urllib.request.urlopen(f"{self.url}/counts") as reply:
            return json.load(reply)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
