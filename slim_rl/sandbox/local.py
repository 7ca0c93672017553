"""Runs programs on this machine: a few zygotes, each with one program at a time.

Of what a program does, only its exit status, its bytes and its time are believed. Bubblewrap's namespaces are put around
a zygote where they work. They hide files, processes and networks; Landlock and seccomp hold with or without them.
"""

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from functools import cache
from itertools import chain
from pathlib import Path

from slim_rl.core.errors import UserError
from slim_rl.sandbox.protocol import ENDED, KILL, NOT_COMPILED, NOT_CONFINED, REQUEST
from slim_rl.sandbox.run import MEMORY_BYTES, OUTPUT_BYTES, Run, Status

GRACE_SECONDS = 10.0
"""How much longer than the program's limit a zygote may take to answer, before it counts as broken."""
ERROR_BYTES = 4096
"""How much of standard error is kept."""

_FOLDER = str(Path(__file__).parent)
_PYTHON = os.path.realpath(sys.executable)
_READABLE = [f"{sys.base_prefix}/lib", "/usr/lib", "/lib", "/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo"]
_PROBE = """
import ctypes, os
try:
    os.listdir("/usr")
except PermissionError:
    print(ctypes.CDLL(None).socket(2, 1, 0))
"""
_PURE_PROBE = f"import os, time\nif abs(time.time() - {time.time()}) > 1e6: os.getpid()"
_PROBES = {
    False: (_PROBE, "ok", "-1\n", "a program could open a folder or a socket"),
    True: (_PURE_PROBE, "killed", "", "a program could read a clock or its number"),
}
"""By whether programs are pure: a program, how it must end, and what is said if it does not."""


class Broken(Exception):
    """A zygote ended or does not answer."""


@cache
def namespaces_work() -> bool:
    """Whether bubblewrap can be used. Raises UserError if programs cannot be confined without it either."""
    otherwise = "Give the address of a server as sandbox.url, or run on Linux 5.13 or later with Landlock and seccomp."
    if not sys.platform.startswith("linux"):
        raise UserError(f"The sandbox needs Linux; this is {sys.platform}. {otherwise}")
    reason = ""
    for namespaces in (True, False) if shutil.which("bwrap") else (False,):
        try:
            Zygote(namespaces, pure=False).close()
            return namespaces
        except Broken as error:
            reason = str(error)
    raise UserError(f"Programs cannot be confined on this machine: {reason}. {otherwise}")


class Zygote:
    """A process of `zygote.py`. One program at a time.

    Raises:
        Broken: it does not start, or a program could open a folder or a socket.
        OSError: this process has no file or process left for it; `run` raises it too.
    """

    def __init__(self, namespaces: bool, pure: bool):
        self.runs = 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [_PYTHON, "-s", "-S", f"{_FOLDER}/zygote.py", "pure" if pure else "plain", *_READABLE]
        if namespaces:  # with no files but Python's
            paths = filter(os.path.exists, (_PYTHON, _FOLDER, *_READABLE))
            binds = chain.from_iterable(("--ro-bind", path, path) for path in paths)
            hidden = ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--chdir", "/")
            command = [shutil.which("bwrap") or "bwrap", *hidden, *binds, *command]
        seed = "random" if pure else "1"
        environment = {"PYTHONHASHSEED": seed, "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8:strict"}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=environment,
                start_new_session=True,  # Ctrl-C is for our process
            )
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
        try:
            program, status, output, otherwise = _PROBES[pure]
            probed = self.run(program, "", GRACE_SECONDS)
            if (probed.status, probed.output) != (status, output):
                raise Broken(probed.errors.strip() or otherwise)
        except (Broken, OSError):
            self.close()
            raise

    def run(self, source: str, stdin: str, seconds: float) -> Run:
        """Run a program. Raises Broken if the zygote is of no use any more."""
        self.runs += 1
        with ExitStack() as ours, ExitStack() as theirs:
            pipes = [_pipe(ours, theirs) for _ in range(3)]
            texts = source.encode(errors="surrogatepass"), stdin.encode(errors="replace")
            files = [*(_file(text, theirs) for text in texts), *(theirs_end for _, theirs_end in pipes)]
            try:
                socket.send_fds(self._socket, [REQUEST.pack(seconds, MEMORY_BYTES)], files)
            except OSError:
                raise self._broken() from None
            theirs.close()
            return self._watch([end for end, _ in pipes], seconds)

    def _watch(self, pipes: list[int], seconds: float) -> Run:
        """Read a program's pipes until it has ended, and kill it when it exceeds a limit."""
        started = time.monotonic()
        until = started + seconds
        texts = {pipe: bytearray() for pipe in pipes}
        room = dict(zip(pipes, (OUTPUT_BYTES + 1, ERROR_BYTES, 1), strict=True))
        poll = select.poll()
        for file in (self._socket.fileno(), *pipes):
            poll.register(file, select.POLLIN)
        fate: Status | None = None
        exit_status: int | None = None
        while True:
            left = 0.0 if exit_status is not None else max(until - time.monotonic(), 0)
            ready = dict(poll.poll(left * 1000))
            for pipe in ready.keys() & texts.keys():
                if not (data := os.read(pipe, 65536)):
                    poll.unregister(pipe)
                texts[pipe] += data[: room[pipe] - len(texts[pipe])]
            full = len(texts[pipes[0]]) > OUTPUT_BYTES
            if self._socket.fileno() in ready:
                poll.unregister(self._socket)
                try:
                    exit_status, taken = ENDED.unpack(self._socket.recv(ENDED.size))[0], time.monotonic() - started
                except (OSError, struct.error):
                    raise self._broken() from None
            elif exit_status is not None and not ready:
                break
            elif exit_status is None and left == 0 and fate:
                raise Broken("the sandbox does not answer")
            elif exit_status is None and (left == 0 or full) and not fate:
                fate, until = "killed" if full else "timeout", time.monotonic() + GRACE_SECONDS
                with suppress(OSError):
                    self._socket.send(KILL)
        output, errors, before = (bytes(text) for text in texts.values())
        fate = "killed" if full else fate or _fate(exit_status, before)
        return Run(fate, output[:OUTPUT_BYTES].decode(errors="replace"), taken, errors.decode(errors="replace"))

    def _broken(self) -> Broken:
        self._process.kill()
        assert self._process.stderr
        return Broken(self._process.stderr.read().decode(errors="replace").strip()[-500:] or "the sandbox has ended")

    def close(self) -> None:
        """End the process, and with it a program that still runs."""
        self._socket.close()
        with self._process:  # waits
            self._process.kill()


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end, stack in zip(ends, (ours, theirs), strict=True):
        stack.callback(os.close, end)
    return ends


def _file(text: bytes, stack: ExitStack) -> int:
    """An open file that holds `text`, in memory and without a name."""
    file = os.memfd_create("text")
    stack.callback(os.close, file)
    with open(file, "wb", closefd=False) as writer:
        writer.write(text)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _fate(exit_status: int, before: bytes) -> Status:
    if before == NOT_CONFINED:
        return "failed"
    if os.WIFSIGNALED(exit_status):
        return "timeout" if os.WTERMSIG(exit_status) == signal.SIGXCPU else "killed"
    if os.WEXITSTATUS(exit_status):
        return "syntax" if before == NOT_COMPILED else "error"
    return "ok"
