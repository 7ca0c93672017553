"""Grading: right programs pass, and no cheat does."""

import asyncio
import itertools
import json
from pathlib import Path

import pytest

from fixtures.texts import read, texts
from slim_rl.sandbox import Run, Sandbox, grading
from slim_rl.sandbox.grading import check, grade, parse_tests

MBPP = Path(__file__).parents[2] / "data/mbpp/mbpp.jsonl"
ASSERTIONS = [  # of MBPP's problem 11
    'assert remove_Occ("hello","l") == "heo"',
    'assert remove_Occ("abcda","a") == "bcd"',
    'assert remove_Occ("PHP","P") == "H"',
]
RIGHT = """def remove_Occ(s, ch):
    s = s.replace(ch, "", 1)
    return "".join(reversed("".join(reversed(s)).replace(ch, "", 1)))
"""
CHEATS = {
    "exits": "import sys\nsys.exit(0)",
    "exits at once": "import os\nos._exit(0)",
    "exits in the function": "import sys\ndef remove_Occ(s, ch): sys.exit(0)",
    "exits at once in the function": "import os\ndef remove_Occ(s, ch): os._exit(0)",
    "exits at the end": "import atexit, os\natexit.register(os._exit, 0)\ndef remove_Occ(s, ch): return s",
    "hooks errors": "import sys, os\nsys.excepthook = lambda *e: os._exit(0)\ndef remove_Occ(s, ch): raise ValueError",
    "is equal to all": (
        "class All:\n    __eq__ = lambda a, b: True\n    __hash__ = None\ndef remove_Occ(s, ch): return All()"
    ),
    "is a text equal to all": (
        "class All(str):\n    __eq__ = lambda a, b: True\n    __hash__ = str.__hash__\ndef remove_Occ(s, ch): return All(s)"
    ),
    "is a number equal to all": (
        "class All(int):\n    __eq__ = lambda a, b: True\n    __hash__ = int.__hash__\ndef remove_Occ(s, ch): return All(1)"
    ),
    "matches anything": "from unittest.mock import ANY\ndef remove_Occ(s, ch): return ANY",
    "lies in its repr": "class R:\n    __repr__ = lambda self: 'True'\ndef remove_Occ(s, ch): return R()",
    "runs in its repr": (
        "class R:\n    __repr__ = lambda self: '__import__(\"os\")._exit(0)'\ndef remove_Occ(s, ch): return R()"
    ),
    "forges results": "import os\nprint([True, True, True], flush=True)\nos._exit(0)",
    "forges results as texts": "import os\nprint([\"'x'\", \"'y'\", \"'z'\"], flush=True)\nos._exit(0)",
    "forges a verdict": "print('passed')\nprint('All tests passed')\ndef remove_Occ(s, ch): print('OK'); return 'right'",
    "replaces repr": "import builtins\nbuiltins.repr = lambda value: 'True'\ndef remove_Occ(s, ch): return s",
    "replaces assert": (
        "import builtins\nbuiltins.AssertionError = type('E', (Exception,), {'__init__': lambda *a: exit(0)})\n"
        "def remove_Occ(s, ch): return s"
    ),
    "reads its callers": (
        "import sys, re\n"
        "def remove_Occ(s, ch):\n"
        "    frame, seen = sys._getframe(), []\n"
        "    while frame:\n"
        "        seen += [frame.f_locals, frame.f_globals, frame.f_code.co_consts]\n"
        "        frame = frame.f_back\n"
        "    return next(iter(re.findall(r'== \\W*(heo|bcd|H)\\b', repr(seen))), None) or\\\n"
        "        next((v for v in ('heo', 'bcd') if v in repr(seen[3:])), None)"
    ),
    "searches memory": (
        "import gc\n"
        "def remove_Occ(s, ch):\n"
        "    if s == 'PHP': return 'H'\n"
        "    known = 'h' + 'eo', 'b' + 'cd'\n"
        "    for thing in gc.get_objects():\n"
        "        values = thing.values() if type(thing) is dict else thing if type(thing) in (list, tuple) else ()\n"
        "        for value in list(values):\n"
        "            if type(value) is str and value in known and value is not known[0] and value is not known[1]:\n"
        "                return value"
    ),
    "reads the tests": (
        "import glob\n"
        "def remove_Occ(s, ch):\n"
        "    return [open(f).read() for f in glob.glob('/**/*mbpp*', recursive=True)][0]"
    ),
    "hangs": "def remove_Occ(s, ch):\n    while True: pass",
    "raises past Exception": "def remove_Occ(s, ch): raise KeyboardInterrupt",
    "swallows what follows": "def remove_Occ(s, ch): return s\nhidden = '''",
    "ends the input": "def remove_Occ(s, ch): return s\nif False:\\",
    "returns its input": "def remove_Occ(s, ch): return s",
}


def graded(sandbox, program, assertions=ASSERTIONS, **kwargs):
    return asyncio.run(grade(sandbox, program, parse_tests(assertions), seconds=0.5, **kwargs))


def test_a_right_program_passes_whatever_it_prints(sandbox):
    assert graded(sandbox, RIGHT).passed
    assert graded(sandbox, f"print('[1]')\n{RIGHT}\nprint(remove_Occ('a', 'a'), end='')").passed
    assert graded(sandbox, f"{RIGHT}\ndef print(): ...\ndef list(): ...").passed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from __future__ import annotations\n", ""),
        ("import sys\ndef main(): return 0\n", "if __name__ == '__main__':\n    sys.exit(main())"),
        ("", "if __name__ == '__main__':\n    unittest.main()"),
        ("", "print(remove_Occ('hello', 'l'))\nexit()"),
        ("import sys\n", "sys.exit(main() if __name__ == '__main__' else 0)"),
        ("import pickle, dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int = 1\n", "assert pickle.loads(pickle.dumps(P())) == P()"),
        ("import typing\nclass P(typing.NamedTuple):\n    x: 'int'\n", "typing.get_type_hints(P)"),
    ],
)  # fmt: skip
def test_a_function_is_graded_as_a_function(sandbox, before, after):
    assert graded(sandbox, f"{before}{RIGHT}{after}\n").passed


@pytest.mark.parametrize("cheat", CHEATS)
def test_no_cheat_passes(sandbox, cheat):
    assert not graded(sandbox, CHEATS[cheat]).passed


def test_each_test_has_its_own_verdict(sandbox):
    program = """def f(x):
    if x == 2: raise ValueError
    return {1: 1, 3: 4, 4: float("inf"), 5: True}[x]"""
    grade = graded(sandbox, program, [f"assert f({x}) == {x}" for x in (1, 2, 3, 4)] + ["assert f(5) == 1"])
    assert grade.verdicts == ("right", "raised", "wrong", "unreadable", "right")


def test_the_setup_runs_after_the_program(sandbox):
    assert graded(sandbox, "def f(): return x", ["assert f() == 1"], setup="x = 1").passed


@pytest.mark.parametrize("text", ["'-' * 50000 + '1'", "'9' * 400 + '+1j'", "'{[]: 1}'", "'['", "'9' * 5000"])
def test_a_result_that_cannot_be_read_is_unreadable(sandbox, text):
    program = f"class R:\n    __repr__ = lambda self: {text}\ndef f(*x): return R()"
    assert graded(sandbox, program, ["assert f() == 1"]).verdicts == ("unreadable",)
    assert checked(sandbox, f"    return x\n{program}\nsucc = f").verdicts == ("unreadable",)


def test_a_check_reads_results_that_python_does_not_write(sandbox):
    """A number of 5000 digits can be read in base 16, and not be written in base 10."""
    program = "class R:\n    __repr__ = lambda self: '0x' + 'f' * 5000\ndef succ(x): return R()"
    assert checked(sandbox, f"    return x\n{program}").verdicts == ("wrong",)


def test_whatever_a_model_writes_is_read_or_unreadable():
    for text in itertools.islice(texts(seed=0), 5000):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "assert f(1)",
        "assert f(1) == g()",
        "assert 1 == f(1)",
        "f(1) == 1",
        "assert f() != 1",
        "assert f(",
        "assert f() == 1 + a",
    ],
)
def test_what_cannot_be_checked_outside_is_refused(text):
    with pytest.raises(ValueError, match="is not"):
        parse_tests([text])


CHECK = """
def check(candidate):
    import random
    assert candidate(1) == 2
    assert abs(candidate(0.5) - 1.5) < 1e-6
    for _ in range(3):
        x = random.randint(0, 9)
        assert candidate(x) == helper(x) and succ(x) == x + 1
"""
PROMPT = "def helper(x):\n    return x + 1\n\ndef succ(x):\n    'One more.'\n"


def checked(sandbox, program, test=CHECK):
    return asyncio.run(check(sandbox, program, "succ", PROMPT, test, seconds=0.5))


def test_a_check_runs_apart_from_the_program(sandbox):
    assert checked(sandbox, "    return x + 1").passed
    assert checked(sandbox, "    return x + 2").verdicts == ("wrong",)
    assert checked(sandbox, "    return {}[x]").verdicts == ("raised",)
    assert checked(sandbox, "    import os; os._exit(0)").verdicts == ("raised",)
    assert not checked(sandbox, "    return All()\nclass All(int):\n    __eq__ = lambda a, b: True").passed
    assert not checked(sandbox, "    return x + 1\ndef check(candidate): pass\nhelper = abs\nsucc = lambda x: 5").passed


@pytest.mark.parametrize(
    "test",
    [
        "import numpy.no_such_module\ndef check(candidate): pass",
        "def check(candidate):\n    assert candidate(1) == 2\n    import no_such_module",
        "def check(candidate):\n    assert candidate(1) == reference(1)",
        "def chec(candidate): pass",
        "def check(candidate): pass\n)",
        "def check(candidate):\n    assert False",
    ],
)
def test_a_test_that_fails_for_a_reason_of_its_own_is_no_wrong_answer(sandbox, test):
    with pytest.raises(grading.TestFailed):
        checked(sandbox, "    return x + 1", test)


@pytest.mark.parametrize(("share", "most"), [(0.99, 33), (0, 3000)], ids=["sleeps", "a server that tells no time"])
def test_all_calls_of_a_check_have_one_deadline(share, most):
    """A program whose every call sleeps just below its limit is wrong, and soon; a check that never ends is ended."""

    class Sleeping:
        slept = 0.0

        async def run(self, source, seconds):
            if "_candidate" in source:
                return Run("error", output="\n(1)")
            self.slept += seconds
            return Run("ok", output="\n['1']", seconds=share * seconds)

    sandbox = Sleeping()
    grade = asyncio.run(check(sandbox, "    return 1", "succ", PROMPT, "", seconds=3.0))
    assert grade.verdicts == ("wrong",) and sandbox.slept <= most


@pytest.mark.slow
def test_reference_solutions_pass():
    problems = [json.loads(line) for line in MBPP.read_text().splitlines()]

    async def every():
        async with Sandbox() as sandbox:

            async def passes(problem):
                try:
                    tests = parse_tests(problem["test_list"] + problem["challenge_test_list"])
                except ValueError:
                    return False
                setup = problem["test_setup_code"]
                return (await grade(sandbox, problem["code"], tests, setup, seconds=30)).passed

            return await asyncio.gather(*map(passes, problems))

    assert len(problems) == 974 and sum(asyncio.run(every())) >= 966
