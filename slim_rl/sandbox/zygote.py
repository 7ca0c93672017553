"""A clean interpreter that forks a confined child for each program.

Standard input is a socket to `local.py`, its only caller, which passes open files for a program, its input and its
results. So this process never holds any of them, and no later child can find them here. It imports nothing of ours but
its neighbours.
"""

import atexit
import gc
import os
import select
import signal
import socket
import sys
import types
from typing import NoReturn

import confine
from protocol import ENDED, FILES, KILL, NOT_COMPILED, NOT_CONFINED, REQUEST

PRELOADED = (
    "abc", "array", "bisect", "calendar", "cmath", "collections.abc", "contextlib", "copy", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "math", "numbers", "operator",
    "random", "re", "statistics", "string", "textwrap", "traceback", "typing",
)  # fmt: skip
"""What programs import most, so that it is not read again for each."""


def main(readable: list[str]) -> None:
    """Serve until the caller closes the socket.

    Args:
        readable: files and folders that programs may read.
    """
    os.chdir("/")
    for module in PRELOADED:
        __import__(module)
    try:
        confine.drop_privileges()
        confinement = confine.Confinement(readable)
    except confine.Unavailable as error:
        sys.exit(str(error))
    caller = socket.socket(fileno=0)
    gc.collect()
    gc.freeze()
    try:
        while _serve(caller, confinement):
            pass
    except OSError as error:  # no process or no file to be had, or the caller is gone
        sys.exit(str(error))


def _serve(caller: socket.socket, confinement: confine.Confinement) -> bool:
    """Run one program. Returns whether the caller is still there."""
    request, files, _, _ = socket.recv_fds(caller, REQUEST.size, FILES)
    if len(request) < REQUEST.size:
        return request == KILL
    if len(files) < FILES:
        sys.exit("Too many open files")
    limits, parent = REQUEST.unpack(request), os.getpid()
    child = os.fork()
    if child == 0:
        _become(files, confinement, limits, parent)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(caller, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while ended not in dict(poll.poll()):
        if not caller.recv(len(KILL)):
            sys.exit()  # the kernel kills the child, too
        os.kill(child, signal.SIGKILL)
    os.close(ended)
    caller.send(ENDED.pack(os.waitpid(child, 0)[1]))
    return True


def _become(files: list[int], confinement: confine.Confinement, limits: tuple[float, int], parent: int) -> NoReturn:
    """Become the program, in a child that was just forked."""
    source, *standard, told = files
    try:
        try:
            for place, file in enumerate(standard):
                os.dup2(file, place)
            for file in set(range(3, 64)) - {source, told, confinement.rules}:
                try:
                    os.close(file)
                except OSError:
                    continue
            confine.limit(*limits)
            confine.die_with(parent)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            confinement.enter()
        except BaseException:
            os.write(told, NOT_CONFINED)
            raise
        try:
            with open(source, "rb") as text:
                code = compile(text.read(), "main.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            os.write(told, NOT_COMPILED)
            raise
        os.close(told)  # from here on nothing it writes says anything of its status
        os._exit(_execute(code))
    except BaseException as error:
        try:
            os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
        finally:
            os._exit(1)
    finally:
        os._exit(1)


def _execute(code: types.CodeType) -> int:
    """Run a program as `python main.py` does; returns its exit code."""
    for name, place, mode, errors in (
        ("stdin", 0, "r", "strict"),
        ("stdout", 1, "w", "strict"),
        ("stderr", 2, "w", "backslashreplace"),
    ):
        opened = open(place, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    sys.argv = ["main.py"]
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    status = 0
    try:
        exec(code, module.__dict__)
    except SystemExit as error:
        status = _exit_code(error)
    except BaseException as error:
        status = 1
        own = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(own), own)
    atexit._run_exitfuncs()
    sys.stderr.flush()
    sys.stdout.flush()
    return status


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0) & 255
    print(error.code, file=sys.stderr)
    return 1
