"""A clean interpreter that forks a confined child for each program.

Standard input is a socket to `local.py`, its only caller, which passes open files for a program, its input and its
results. So this process never holds any of them, and no later child can find them here. It imports nothing of ours but
its neighbours.
"""

import atexit
import gc
import linecache
import os
import random
import select
import signal
import site
import socket
import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, starmap
from typing import Any, NoReturn

import confine
from protocol import ENDED, FILES, KILL, NOT_COMPILED, NOT_CONFINED, REQUEST

del sys.path[0]  # this folder: programs shall not import it

PRELOADED = (
    "__future__", "abc", "array", "base64", "binascii", "bisect", "calendar", "cmath", "collections.abc", "contextlib", "copy",
    "dataclasses", "datetime", "decimal", "encodings.ascii", "encodings.latin_1", "enum", "fractions", "functools", "hashlib",
    "heapq", "inspect", "io", "itertools", "json", "math", "numbers", "operator", "pprint", "random", "re", "statistics",
    "string", "struct", "textwrap", "time", "traceback", "types", "typing", "unicodedata", "weakref", "zlib",
)  # fmt: skip
"""What programs import most, so that it is not read again for each."""
PRELOADED_PURE = ("argparse", "graphlib", "logging", "pathlib", "queue", "shlex", "threading", "uuid")
"""What else a pure program can import."""


def main(readable: list[str], pure: bool) -> None:
    """Serve until the caller closes the socket. See `Confinement`."""
    os.chdir("/")
    for module in PRELOADED + PRELOADED_PURE * pure:
        __import__(module)
    for add in (site.setquit, site.sethelper, site.setcopyright):  # exit(), help(), as every Python has them
        add()
    try:
        confinement = confine.Confinement(readable, pure)
    except confine.Unavailable as error:
        sys.exit(str(error))
    caller = socket.socket(fileno=0)
    gc.collect()
    gc.freeze()
    try:
        while _serve(caller, confinement, pure):
            pass
    except OSError as error:  # no process or no file to be had, or the caller is gone
        sys.exit(str(error))


def _serve(caller: socket.socket, confinement: confine.Confinement, pure: bool) -> bool:
    """Run one program. Returns whether the caller is still there."""
    request, files, _, _ = socket.recv_fds(caller, REQUEST.size, FILES)
    if len(request) < REQUEST.size:
        return request == KILL
    if len(files) < FILES:
        sys.exit("Too many open files")
    limits, parent = REQUEST.unpack(request), os.getpid()
    child = os.fork()
    if child == 0:
        _become(files, confinement, limits, parent, pure)
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


def _become(
    files: list[int], confinement: confine.Confinement, limits: tuple[float, int], parent: int, pure: bool
) -> NoReturn:
    """Become the program, in a child that was just forked."""
    source, *standard, report = files
    try:
        try:
            for place, file in enumerate(standard):  # sys.stdin and the other two have never been used
                os.dup2(file, place)
            for file in set(range(3, 64)) - {source, report, confinement.rules}:
                with suppress(OSError):
                    os.close(file)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            with open(source, "rb") as text:
                program = text.read()
            objects = _objects() if pure else ()
            if pure:
                sys.modules.update({"ctypes": None, "_ctypes": None})  # type: ignore[dict-item]
            confinement.enter(*limits, parent)
        except BaseException:
            os.write(report, NOT_CONFINED)
            raise
        try:
            code = compile(program, "main.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            os.write(report, NOT_COMPILED)
            raise
        lines = program.decode(errors="replace").splitlines(keepends=True)
        linecache.cache["main.py"] = len(program), None, lines, "main.py"
        os.close(report)  # from here on nothing it writes says anything of its status
        os._exit(_execute(code, objects))
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
    finally:
        os._exit(1)


def _objects() -> Iterator[object]:
    """Objects of all sizes, as many as chance says, so that a program's own, made after them, have addresses of their own."""
    draw = random.Random().randrange
    made: list[tuple[Any, tuple[Any, ...], int]] = [(bytes, (size,), 20) for size in range(0, 256, 16)]
    # The interpreter keeps up to 100 of these to use again.
    made += [(make, (), 90) for make in (object, list, dict, float)]
    made += [(tuple, (bytes(size),), 90) for size in range(1, 6)]
    same = chain(*(starmap(make, [arguments] * (least + draw(48))) for make, arguments, least in made))
    return chain(same, map(bytes, [draw(20000) for _ in range(9)]), [bytes(draw(2**18))])


def _execute(code: types.CodeType, objects: Iterable[object]) -> int:
    """Run a program as `python main.py` does; returns its exit code."""
    sys.argv = ["main.py"]
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    module.__dict__.update(__file__="main.py", __cached__=None, __annotations__={})
    status = 0
    kept = list(objects)  # noqa: F841
    try:
        exec(code, module.__dict__)
    except SystemExit as error:
        if isinstance(error.code, int | None):
            status = int(error.code or 0) & 255
        else:
            status = 1
            print(error.code, file=sys.stderr)
    except BaseException as error:
        status = 1
        own = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(own), own)
    atexit._run_exitfuncs()
    sys.stderr.flush()
    sys.stdout.flush()
    return status


if __name__ == "__main__":
    main(readable=sys.argv[2:], pure=sys.argv[1] == "pure")
