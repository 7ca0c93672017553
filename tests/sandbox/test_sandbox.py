"""The sandbox: how programs end, what they see, and what happens when the sandbox itself breaks."""

import asyncio
import gc
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress

import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from fixtures.marks import marked
from slim_rl.core.errors import UserError
from slim_rl.sandbox import Sandbox, SandboxConfig, local

RUNS = 24


def run(sandbox, source, **kwargs):
    return asyncio.run(sandbox.run(source, **kwargs))


@pytest.mark.parametrize(
    ("source", "status", "output"),
    [
        ("print(1)", "ok", "1\n"),
        ("x = 1", "ok", ""),
        ("", "ok", ""),
        ("raise SystemExit(0)", "ok", ""),
        ("raise SystemExit", "ok", ""),
        ("print(42)\nexit()\nprint(43)", "ok", "42\n"),
        ("print(42)\nquit(3)", "error", "42\n"),
        (
            "import inspect\ndef f(): pass\nprint(__file__, inspect.getsource(f), help)",
            "ok",
            "main.py def f(): pass\n Type help() for interactive help, or help(object) for help about object.\n",
        ),
        ("raise SystemExit(256)", "ok", ""),
        ("print(1)\nimport os\nos._exit(0)", "ok", ""),
        ("import warnings\nwarnings.warn('beware')", "ok", ""),
        ("import atexit\natexit.register(print, 'late')\nprint('early')", "ok", "early\nlate\n"),
        ("if __name__ == '__main__': print(__name__)", "ok", "__main__\n"),
        ("import sys\nsys.stdout.buffer.write(b'\\xff')", "ok", "\ufffd"),
        ("import sqlite3, uuid, zoneinfo, asyncio, unittest", "ok", ""),
        ("1 / 0", "error", ""),
        ("print(1)\nraise SystemExit(3)", "error", "1\n"),
        ("raise SystemExit('no')", "error", ""),
        ("raise KeyboardInterrupt", "error", ""),
        ("print('\\ud800')", "error", ""),
        ("x = bytes(10**12)", "error", ""),
        ("f = lambda: f()\nf()", "error", ""),
        ("exec('(')", "error", ""),
        ("-" * 100_000 + "1", "error", ""),
        ("print(", "syntax", ""),
        ("if 1:\nprint(1)", "syntax", ""),
        ("return 1", "syntax", ""),
        ("a = 1\0", "syntax", ""),
        ("a = '\ud800'", "syntax", ""),
        ("(" * 1000, "syntax", ""),
        ("while True: pass", "timeout", ""),
        ("import time\ntime.sleep(9)", "timeout", ""),
        ("import ctypes\nctypes.string_at(0)", "killed", ""),
        ("import signal\nsignal.alarm(1)\nsignal.pause()", "killed", ""),
    ],
)
def test_how_a_program_ends(sandbox, source, status, output):
    seconds = 2.0 if "alarm" in source or status != "timeout" else 0.2
    ended = run(sandbox, source, seconds=seconds)
    assert (ended.status, ended.output) == (status, output), ended.errors


def test_a_flood_is_cut_and_the_program_killed(sandbox):
    ended = run(sandbox, "while True: print('x' * 1000)")
    assert ended.status == "killed" and ended.output == ("x" * 1000 + "\n") * 65 + "x" * 471
    whole = run(sandbox, "print('x' * 65535)")
    assert whole.status == "ok" and len(whole.output) == 65536
    assert run(sandbox, "import sys\nfor _ in range(10**4): print('x' * 1000, file=sys.stderr)").status == "ok"


def test_a_program_reads_its_input(sandbox):
    text = "é\n" * 100_000
    assert run(sandbox, "import sys\nprint(len(sys.stdin.read()))", stdin=text).output == "200000\n"
    assert run(sandbox, "print(input() + input())", stdin="1\n2").output == "12\n"
    assert run(sandbox, "input()").status == "error"


def test_what_went_wrong_is_told_without_our_files(sandbox):
    told = run(sandbox, "x = 1\ny = x / 0").errors
    assert "main.py" in told and "line 2" in told and told.endswith("ZeroDivisionError: division by zero\n")
    assert "zygote" not in told


def test_random_numbers_and_ids_are_new_in_each_run_and_the_order_of_sets_is_not(sandbox):
    ran = [run(sandbox, "import random\nprint(random.random())").output for _ in range(3)]
    assert len(set(ran)) == 3
    ran = [run(sandbox, "print(*{str(i) for i in range(50)})").output for _ in range(3)]
    assert len(set(ran)) == 1


def test_the_order_of_sets_is_the_same_in_each_interpreter_and_the_addresses_are_not(sandbox):
    source = "print(*{str(i) for i in range(20)})\nprint(id(print))"
    other = Sandbox(SandboxConfig(workers=1))
    here, there = (run(place, source).output.splitlines() for place in (sandbox, other))
    other.close()
    assert here[0] == there[0] and here[1] != there[1]


@pytest.mark.parametrize("workers", [1, 2])
def test_no_run_finds_anything_of_an_earlier_one(workers):
    """What earlier runs read, wrote and were, and a checker with what it expects, are searched for in all of memory."""
    assert set(asyncio.run(marked(workers, runs=24, every=8))) == {("ok", "")}


def test_programs_run_at_once_and_no_more_than_there_are_workers():
    async def four():
        async with Sandbox(SandboxConfig(workers=2)) as sandbox:
            source = "import time\nprint(time.monotonic())\ntime.sleep(0.3)\nprint(time.monotonic())"
            return await asyncio.gather(*(sandbox.run(source) for _ in range(4)))

    spans = [tuple(map(float, one.output.split())) for one in asyncio.run(four())]
    at_once = [sum(start <= other < end for start, end in spans) for other, _ in spans]
    assert max(at_once) == 2


def for_each_sandbox_process(do):
    """Other tests have processes, too, such as the partner's server."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended with its parent
            if any("zygote" in word for word in child.cmdline()):
                do(child)


def test_a_sandbox_that_breaks_says_so_and_the_next_run_has_a_new_one(sandbox):
    assert run(sandbox, "print(1)").status == "ok"
    for_each_sandbox_process(lambda child: child.send_signal(signal.SIGKILL))
    broken = run(sandbox, "print(1)")
    assert (broken.status, broken.output) == ("failed", "") and broken.errors
    assert run(sandbox, "print(1)").status == "ok"


def test_a_sandbox_that_has_no_process_left_says_so(sandbox):
    """The limit of files stands for all limits of the machine: no pipe, no fork."""
    assert run(sandbox, "print(1)").status == "ok"
    for_each_sandbox_process(lambda child: resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (4, 4)))
    broken = run(sandbox, "print(1)")
    assert broken.status == "failed" and "Too many open files" in broken.errors
    assert run(sandbox, "print(1)").status == "ok"


@pytest.mark.parametrize(("left", "started"), [(0, True), (5, True), (0, False), (2, False), (7, False)])
def test_a_run_for_which_our_own_process_has_no_files_left_has_failed(left, started):
    """For its pipes and its program; or for a sandbox, its process and the first program there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def run_with_few_files(sandbox):
        free = [os.dup(0) for _ in range(left + 1)]  # the lowest ones
        for file in free:
            os.close(file)
        opened = os.listdir("/proc/self/fd")
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], hard))
        try:
            ended = await sandbox.run("print(1)")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return ended, len(os.listdir("/proc/self/fd")) - len(opened)

    with closing(Sandbox()) as sandbox:
        assert not started or run(sandbox, "print(1)").status == "ok"
        ended, more_files = asyncio.run(run_with_few_files(sandbox))
        assert ended.status == "failed" and "Too many open files" in ended.errors
        assert more_files == (-2 if started else 0), "nothing stays open, and what had started is closed"
        assert run(sandbox, "print(1)").status == "ok"


def test_without_landlock_and_seccomp_it_refuses(monkeypatch):
    def refuse(*args, **kwargs):
        raise local.Broken("the kernel has no Landlock")

    monkeypatch.setattr(local, "Zygote", refuse)
    local.namespaces_work.cache_clear()
    with pytest.raises(UserError, match="the kernel has no Landlock"):
        run(Sandbox(), "print(1)")
    local.namespaces_work.cache_clear()


def test_runs_leave_no_process_no_file_and_no_zombie():
    gc.collect()
    before = set(psutil.Process().children(recursive=True)), len(os.listdir("/proc/self/fd"))
    programs = ["print(1)", "1 / 0", "(", "import os; os.fork()", "open('/tmp/left', 'w')", "print('x' * 10**6)"]

    async def many():
        async with Sandbox() as sandbox:
            return await asyncio.gather(*(sandbox.run(programs[n % len(programs)]) for n in range(RUNS)))

    assert {one.status for one in asyncio.run(many())} == {"ok", "error", "syntax", "killed"}
    gc.collect()
    assert (set(psutil.Process().children(recursive=True)), len(os.listdir("/proc/self/fd"))) == before
    assert not os.path.exists("/tmp/left")


@pytest.mark.slow
def test_a_killed_caller_leaves_no_process():
    source = """import asyncio, psutil
from slim_rl.sandbox import Sandbox
async def main():
    async with Sandbox() as sandbox:
        await sandbox.run("")
        print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
        await sandbox.run("while True: pass", seconds=60)
asyncio.run(main())"""
    caller = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    started = [psutil.Process(int(pid)) for pid in caller.stdout.readline().split()]
    assert started
    time.sleep(0.3)
    caller.kill()
    caller.communicate()
    gone, alive = psutil.wait_procs(started, timeout=5)
    assert len(gone) == len(started) and not alive


def test_a_bubblewrap_anywhere_on_the_path_is_the_one_that_is_tried(tmp_path, monkeypatch):
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\ntouch {tmp_path}/tried\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    local.namespaces_work.cache_clear()
    assert not local.namespaces_work() and (tmp_path / "tried").exists()
    local.namespaces_work.cache_clear()


ANSWERS = {  # of SandboxFusion: to a program, and how we read it
    "print(1)": ("Success", {"status": "Finished", "return_code": 0, "stdout": "1\n", "stderr": "", "execution_time": 0.1}, "ok"),
    "a surrogate": ("Success", {"status": "Finished", "return_code": 0, "stdout": "\ud800\n"}, "ok"),
    "(": ("Failed", {"status": "Finished", "return_code": 1, "stdout": "", "stderr": '  File "a.py"\nSyntaxError: no\n'}, "syntax"),
    "1/0": ("Failed", {"status": "Finished", "return_code": 1, "stderr": "Traceback (most recent call last):\nZeroDivisionError: no\n"}, "error"),
    "exec('(')": ("Failed", {"status": "Finished", "return_code": 1, "stderr": "Traceback (most recent call last):\nSyntaxError: no\n"}, "error"),
    "sleep": ("Failed", {"status": "TimeLimitExceeded", "return_code": None, "stdout": "", "stderr": ""}, "timeout"),
    "crash": ("Failed", {"status": "Finished", "return_code": -11, "stdout": "", "stderr": ""}, "killed"),
    "flood": ("Success", {"status": "Finished", "return_code": 0, "stdout": "x" * 65537}, "killed"),
    "broken": ("SandboxError", None, "failed"),
    "no result": ("Success", None, "failed"),
    "no code": ("Failed", {"status": "Finished"}, "failed"),
    "nonsense": ("Success", {"status": 7, "stdout": []}, "failed"),
    "a list": ("Success", [], "failed"),
}  # fmt: skip


def test_a_server_is_asked_and_its_answers_are_read():
    bodies = []

    async def run_code(request):
        body = await request.json()
        bodies.append(body)
        if body["code"] not in ANSWERS:
            return web.Response(status=502 if body["code"] == "outage" else 200, text="no JSON")
        status, result, _ = ANSWERS[body["code"]]
        return web.json_response({"status": status, "message": "no worker", "run_result": result})

    async def ask():
        app = web.Application()
        app.router.add_post("/run_code", run_code)
        async with TestServer(app) as server, Sandbox(SandboxConfig(url=str(server.make_url("/")))) as sandbox:
            return {source: await sandbox.run(source, "in", 2.0) for source in (*ANSWERS, "outage", "no JSON")}

    runs = asyncio.run(ask())
    expected = {source: status for source, (*_, status) in ANSWERS.items()}
    assert {source: one.status for source, one in runs.items()} == {**expected, "outage": "failed", "no JSON": "failed"}
    assert runs["print(1)"].output == "1\n" and runs["a surrogate"].output == "?\n"
    assert runs["broken"].errors == "no worker" and "502" in runs["outage"].errors
    assert bodies[0] == {
        "code": "print(1)", "language": "python", "stdin": "in", "run_timeout": 2.0, "memory_limit_MB": 256,
    }  # fmt: skip


def test_a_server_that_is_not_there_has_failed_and_our_own_mistake_is_an_error():
    sandbox = Sandbox(SandboxConfig(url="http://127.0.0.1:9"))
    assert run(sandbox, "print(1)").status == "failed"
    with pytest.raises(TypeError):
        run(sandbox, "print(1)", seconds="1")
