"""Runs programs on this machine: a few zygotes, each with one program at a time.

Bubblewrap's namespaces are put around a zygote where they work. They hide files, processes and networks; Landlock and
seccomp hold with or without them.
"""

import asyncio
import os
import select
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import cast

from slim_rl.core.errors import UserError
from slim_rl.sandbox.config import SandboxConfig
from slim_rl.sandbox.protocol import REQUEST, RESULT, STATUSES
from slim_rl.sandbox.run import Run, Status

GRACE_SECONDS = 10.0
"""How much longer than the program's limit a zygote may take to answer, before it counts as broken."""

_FOLDER = str(Path(__file__).parent)
_PYTHON = os.path.realpath(sys.executable)
_READABLE = [f"{sys.base_prefix}/lib", "/usr/lib", "/lib", "/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo"]
_START = """
import sys
sys.path.insert(0, {!r})
import zygote
del sys.path[0]
zygote.main(readable={!r}, protect={!r}, world={!r})
"""
_PROBE = """
import ctypes, os
try:
    os.listdir("/usr")
except PermissionError:
    print(ctypes.CDLL(None).socket(2, 1, 0))
"""
"""Prints -1 if neither folders nor sockets are to be had."""


class _Broken(Exception):
    """A zygote ended or does not answer."""


class LocalRunner:
    """Zygotes, started when they are needed.

    Args:
        world: programs of another world see another hash seed, address layout and calendar clock.
    """

    def __init__(self, config: SandboxConfig, world: int):
        self._config, self._world = config, world
        self._threads = ThreadPoolExecutor(config.workers, thread_name_prefix="sandbox")
        self._free: SimpleQueue[Zygote | None] = SimpleQueue()
        for _ in range(config.workers):
            self._free.put(None)

    async def run(self, source: str, stdin: str, seconds: float) -> Run:
        """See `Sandbox.run`."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, source, stdin, seconds)

    def _run(self, source: str, stdin: str, seconds: float) -> Run:
        zygote = self._free.get()
        try:
            zygote = zygote or start(self._config.kind == "local", self._world)
            return zygote.run(source, stdin, seconds, self._config)
        except _Broken as error:
            if zygote is not None:
                zygote.close()
            zygote = None
            return Run("failed", errors=str(error))
        finally:
            self._free.put(zygote)

    def close(self) -> None:
        self._threads.shutdown()
        for _ in range(self._config.workers):
            if zygote := self._free.get():
                zygote.close()


def start(protect: bool, world: int) -> "Zygote":
    """A zygote that is ready.

    Raises:
        UserError: this machine cannot confine programs.
        _Broken: it does not start now.
    """
    return Zygote(protect, world, protect and _namespaces_work())


@cache
def _namespaces_work() -> bool:
    """Whether bubblewrap can be used. Raises UserError if programs cannot be confined without it either."""
    if not sys.platform.startswith("linux"):
        raise UserError(f"The sandbox needs Linux; this is {sys.platform}. {_OTHERWISE}")
    if shutil.which("bwrap"):
        try:
            Zygote(True, 0, namespaces=True).close()
            return True
        except _Broken:
            pass
    try:
        Zygote(True, 0, namespaces=False).close()
    except _Broken as error:
        raise UserError(f"Programs cannot be confined on this machine: {error}. {_OTHERWISE}") from None
    return False


_OTHERWISE = "Use a server with sandbox.kind: http, or run on Linux 5.13 or later with Landlock and seccomp."


class Zygote:
    """A process of `zygote.py`. One program at a time."""

    def __init__(self, protect: bool, world: int, namespaces: bool):
        command = [_PYTHON, "-P", "-s", "-S", "-c", _START.format(_FOLDER, _READABLE, protect, world)]
        self._process = subprocess.Popen(
            [*(_bubblewrap() if namespaces else []), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={"PYTHONHASHSEED": str(world + 1), "LANG": "C.UTF-8"},
            start_new_session=True,  # Ctrl-C is for our process
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._requests, self._results, self._errors = self._process.stdin, self._process.stdout, self._process.stderr
        try:
            probed = self.run(_PROBE if protect else "print(-1)", "", GRACE_SECONDS, SandboxConfig())
            if (probed.status, probed.output) != ("ok", "-1\n"):
                raise _Broken(probed.errors.strip() or "a program could open a folder or a socket")
        except _Broken:
            self.close()
            raise

    def run(self, source: str, stdin: str, seconds: float, config: SandboxConfig) -> Run:
        """Run a program.

        Raises:
            _Broken: the zygote is of no use any more.
        """
        code, given = source.encode(errors="surrogatepass"), stdin.encode(errors="replace")
        until = time.monotonic() + seconds + GRACE_SECONDS
        head = REQUEST.pack(seconds, config.memory_bytes, config.output_bytes, len(code), len(given))
        try:
            self._write(head + code + given)
            place, taken, output_bytes, error_bytes = RESULT.unpack(self._read(RESULT.size, until))
            output, errors = self._read(output_bytes, until), self._read(error_bytes, until)
        except BrokenPipeError:
            raise self._broken() from None
        return Run(
            cast(Status, STATUSES[place]), output.decode(errors="replace"), taken, errors.decode(errors="replace")
        )

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._requests.write(rest) or 0 :]

    def _read(self, size: int, until: float) -> bytes:
        data = bytearray()
        poll = select.poll()
        poll.register(self._results, select.POLLIN)
        while len(data) < size:
            if not poll.poll(max(until - time.monotonic(), 0) * 1000):
                raise _Broken("the sandbox does not answer")
            if not (more := self._results.read(size - len(data))):
                raise self._broken()
            data += more
        return bytes(data)

    def _broken(self) -> _Broken:
        self._process.kill()
        return _Broken(self._errors.read().decode(errors="replace").strip()[-500:] or "the sandbox has ended")

    def close(self) -> None:
        """End the process, and with it a program that still runs."""
        self._requests.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._results.close()
        self._errors.close()


def _bubblewrap() -> list[str]:
    """A command that runs what follows in namespaces of its own, with no files but Python's."""
    shown = [_PYTHON, _FOLDER, *_READABLE]
    binds = [word for path in shown if os.path.exists(path) for word in ("--ro-bind", path, path)]
    return ["bwrap", "--unshare-all", "--cap-drop", "ALL", "--chdir", "/", *binds]
