"""A clean interpreter that forks a confined child for each program.

It reads requests from standard input and writes results to standard output; `local.py` is its only caller. Of what a
child does, only its exit status, its bytes and its time are believed. Imports nothing of ours but its neighbours here.
"""

import atexit
import fcntl
import gc
import os
import select
import signal
import sys
import threading
import time
import types
from typing import NamedTuple, NoReturn

import confine
from protocol import REQUEST, RESULT, STATUSES

ERROR_BYTES = 4096
"""How much of standard error is kept."""
WORLD_SECONDS = 34_321_661
"""How far the clock of a world is ahead of the one before: a year, a month and more, so that every part of a date and of
a time of day differs."""
WORLD_PROCESSES = 97
"""How far the numbers of processes are ahead. In namespaces they begin with 1 in every world."""
PRELOADED = (
    "abc", "array", "bisect", "calendar", "cmath", "collections.abc", "contextlib", "copy", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "math", "numbers", "operator",
    "random", "re", "statistics", "string", "textwrap", "traceback", "typing",
)  # fmt: skip
"""What programs import most, so that it is not read again for each."""


class Limits(NamedTuple):
    seconds: float
    memory_bytes: int
    output_bytes: int


class Result(NamedTuple):
    status: str
    seconds: float = 0.0
    output: bytes = b""
    errors: bytes = b""


def main(readable: list[str], protect: bool, world: int) -> None:
    """Serve until standard input ends.

    Args:
        readable: files and folders that programs may read.
        protect: whether programs are confined.
        world: other worlds have another calendar clock and other numbers of processes.
    """
    os.chdir("/")
    for module in PRELOADED:
        __import__(module)
    for _ in range(WORLD_PROCESSES * world):
        thread = threading.Thread()  # takes a number as a process does
        thread.start()
        thread.join()
    try:
        if world:
            confine.shift_clock(WORLD_SECONDS * world)
        if protect:
            confine.drop_privileges()
        confinement = confine.Confinement(readable) if protect else None
    except confine.Unavailable as error:
        sys.exit(str(error))
    gc.collect()
    gc.freeze()
    while head := _read(REQUEST.size):
        *limits, source_bytes, stdin_bytes = REQUEST.unpack(head)
        source, stdin = _read(source_bytes), _read(stdin_bytes)
        try:
            result = _run(source, stdin, confinement, Limits(*limits))
        except OSError as error:  # no process or no file to be had
            sys.exit(str(error))
        status, seconds, output, errors = result
        _write(1, RESULT.pack(STATUSES.index(status), seconds, len(output), len(errors)) + output + errors)


def _run(source: bytes, stdin: bytes, confinement: "confine.Confinement | None", limits: Limits) -> Result:
    pipes = [os.pipe() for _ in range(3)]
    started, parent = time.monotonic(), os.getpid()
    child = os.fork()
    if child == 0:
        _become(source, stdin, confinement, limits, [end for _, end in pipes], parent)
    for _, end in pipes:
        os.close(end)
    ended = os.pidfd_open(child)
    fate, kept = _watch(child, ended, [end for end, _ in pipes], limits)
    _, status = os.waitpid(child, 0)
    seconds = time.monotonic() - started
    for end in (ended, *(end for end, _ in pipes)):
        os.close(end)
    if fate == "orphaned":
        sys.exit()
    output, errors, told = kept
    code = os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    if told == b"F":
        fate = "failed"
    elif not fate and os.WIFSIGNALED(status):
        fate = "timeout" if code == signal.SIGXCPU else "killed"
    elif not fate and code:
        fate = "syntax" if told == b"S" else "error"
    return Result(fate or "ok", seconds, output[: limits.output_bytes], errors)


def _watch(child: int, ended: int, pipes: list[int], limits: Limits) -> "tuple[str, list[bytes]]":
    """Read a child's pipes until it has ended, and kill it when it exceeds a limit.

    Returns why it was killed, empty if it was not, and what came out of each pipe.
    """
    until = time.monotonic() + limits.seconds
    room = dict(zip(pipes, (limits.output_bytes + 1, ERROR_BYTES, 1), strict=True))
    kept = {pipe: bytearray() for pipe in pipes}
    poll = select.poll()
    poll.register(0, 0)  # reports when our caller is gone
    for file in (ended, *pipes):
        poll.register(file, select.POLLIN)
    fate = ""
    while True:
        left = until - time.monotonic()
        ready = dict(poll.poll(max(left * 1000, 0)))
        for pipe in ready.keys() & kept.keys():
            data = os.read(pipe, 65536)
            kept[pipe] += data[: room[pipe] - len(kept[pipe])]
            if not data:
                poll.unregister(pipe)
            elif pipe == pipes[0] and len(kept[pipe]) == room[pipe]:
                fate = "killed"
        if 0 in ready:
            fate = "orphaned"
        elif left <= 0:
            fate = fate or "timeout"
        if fate:
            os.kill(child, signal.SIGKILL)
        if fate or (ended in ready and not ready.keys() & kept.keys()):
            return fate, [bytes(kept[pipe]) for pipe in pipes]


def _become(
    source: bytes,
    stdin: bytes,
    confinement: "confine.Confinement | None",
    limits: Limits,
    ends: list[int],
    parent: int,
) -> NoReturn:
    """Become the program, in a child that was just forked."""
    told = ends[2]
    code = None
    try:
        try:
            _take_files(stdin, ends, confinement)
            confine.limit(limits.seconds, limits.memory_bytes)
            confine.die_with(parent)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if confinement is not None:
                confinement.enter()
        except BaseException:
            os.write(told, b"F")
            raise
        try:
            code = compile(source, "main.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            os.write(told, b"S")
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


def _take_files(stdin: bytes, ends: list[int], confinement: "confine.Confinement | None") -> None:
    """Leave the program its input and two pipes, and what is needed until it starts."""
    given = os.memfd_create("stdin", os.MFD_ALLOW_SEALING)
    _write(given, stdin)
    os.lseek(given, 0, os.SEEK_SET)
    fcntl.fcntl(
        given, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    )
    for place, file in enumerate((given, *ends[:2])):
        os.dup2(file, place)
    needed = [ends[2]] + ([confinement.rules] if confinement else [])
    for file in set(range(3, 64)) - set(needed):
        try:
            os.close(file)
        except OSError:
            continue


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


def _read(size: int) -> bytes:
    """`size` bytes of a request; nothing at the end of requests."""
    data = b""
    while len(data) < size and (more := os.read(0, size - len(data))):
        data += more
    return data if len(data) == size else b""


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
