"""Which sessions are open: a journal for each process, so that those of a killed process are deleted by the next."""

import os
import socket
from contextlib import suppress
from pathlib import Path

from slim_rl.core.errors import GameFailed, UserError
from slim_rl.games.openreward.client import Connection, delete
from slim_rl.runtime.journal import Journal, append_line, read_lines
from slim_rl.runtime.work import work_root


class OpenSessions:
    """The sessions of this process on one server, in `openreward/HOST-PID-START.jsonl` of the work folder."""

    def __init__(self, address: str):
        self._address = address
        self._journal: tuple[str, Journal] | None = None
        self._started = False

    async def begin(self, connection: Connection) -> None:
        """At the first call, delete what ended processes left open."""
        if not self._started:
            self._started = True
            await self.delete_orphans(connection)

    def opened(self, sid: str) -> None:
        self._note(sid, True)

    def closed(self, sid: str) -> None:
        self._note(sid, False)

    async def delete_orphans(self, connection: Connection) -> int:
        """Delete what ended processes of this machine left open on this server. Returns the number of sessions."""
        deleted = 0
        for path in sorted(_folder().glob(f"{socket.gethostname()}-*.jsonl")):
            if path.stem.rsplit("-", 2)[0] != socket.gethostname() or _alive(path.stem):
                continue
            left = open_in(path)
            for sid in left.get(self._address, ()):
                with suppress(GameFailed, UserError):  # it stays in the journal
                    await delete(connection, sid)
                    deleted += 1
                    append_line(path, self._line(sid, False))
            if not any(open_in(path).values()):
                path.unlink(missing_ok=True)
        return deleted

    def _note(self, sid: str, is_open: bool) -> None:
        if self._journal is None or self._journal[0] != _process():  # after a fork
            self._journal = _process(), Journal(_folder() / f"{_process()}.jsonl")
        self._journal[1].append(self._line(sid, is_open))

    def _line(self, sid: str, is_open: bool) -> dict[str, object]:
        return {"address": self._address, "session": sid, "open": is_open}


def open_in(path: Path) -> dict[str, list[str]]:
    """The sessions that a journal lists as open, by server."""
    found: dict[str, list[str]] = {}
    for line in read_lines(path):
        sids = found.setdefault(line["address"], [])
        if line["open"]:
            sids.append(line["session"])
        elif line["session"] in sids:
            sids.remove(line["session"])
    return found


def _folder() -> Path:
    return work_root() / "openreward"


def _process(pid: int | None = None) -> str:
    """HOST-PID-START of a process; numbers are given again, so the time of its start belongs to its name."""
    pid = pid or os.getpid()
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:  # no such process, or no Linux
        start = "0"
    return f"{socket.gethostname()}-{pid}-{start}"


def _alive(name: str) -> bool:
    pid = int(name.split("-")[-2])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return name == _process(pid)
