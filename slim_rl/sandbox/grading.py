"""Grades programs where they cannot reach: their results come out as literals and are compared here.

The expected values never enter the sandbox that runs the program. So it does not matter what a program does to its
interpreter: to pass, it has to print the right values, and it can only compute them.
"""

import ast
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from slim_rl.sandbox import Run, Sandbox
from slim_rl.sandbox.program import Unreadable, literal_in, syntax_of

Verdict = Literal["right", "wrong", "raised", "unreadable"]
"""`raised`: there is no result. `unreadable`: the result is no literal (an own class, `Counter`, an infinite number), which
is wrong, too; docs/sandbox.md says how many of MBPP's reference solutions this concerns."""
Case = tuple[str, Any]
"""A call, "f(1, 2)", and what it should return."""
MAX_CALLS = 1000
"""A `check` that calls its candidate more often has failed, also where a server does not tell how long a program ran."""
CHECK_LIMITS = 10
"""All runs of a program and of its `check` together may take as many times the limit of one."""


class TestFailed(Exception):
    """A test failed for a reason of its own, so it says nothing of the program."""


@dataclass(frozen=True)
class Grade:
    run: Run
    """The last run of the program."""
    verdicts: tuple[Verdict, ...]
    """One for each test; all `raised` if the program ended early."""

    @property
    def passed(self) -> bool:
        return all(verdict == "right" for verdict in self.verdicts)


def parse_tests(assertions: Sequence[str]) -> list[Case]:
    """The tests in assertions of the form `assert f(...) == literal`.

    Raises:
        ValueError: an assertion has another form, so it cannot be checked outside of the sandbox.
    """
    return [_case(text) for text in assertions]


def _case(text: str) -> Case:
    try:
        body = syntax_of(text.strip()).body
    except Unreadable as error:
        raise ValueError(f"{text!r} is not a statement: {error}") from None
    match body:
        case [ast.Assert(ast.Compare(ast.Call() as call, [ast.Eq()], [expected]))]:
            with suppress(Unreadable):
                return ast.unparse(call), literal_in(ast.unparse(expected))
    raise ValueError(f"{text!r} is not of the form `assert f(...) == literal`")


async def grade(sandbox: Sandbox, program: str, cases: Sequence[Case], setup: str = "", seconds: float = 3.0) -> Grade:
    """Import a program, make the calls of its tests, and compare the results here.

    Args:
        setup: run after the program and before the calls.
        seconds: for all of it.
    """
    run, results = await _results(sandbox, [program, setup], [call for call, _ in cases], seconds)
    return Grade(run, tuple(_verdict(text, value) for text, (_, value) in zip(results, cases, strict=True)))


def _verdict(result: str | None, expected: Any) -> Verdict:
    if result is None:
        return "raised"
    try:
        return "right" if literal_in(result) == expected else "wrong"
    except Unreadable:
        return "unreadable"


async def check(
    sandbox: Sandbox, program: str, entry_point: str, prompt: str, test: str, seconds: float = 3.0
) -> Grade:
    """HumanEval's `check(candidate)`: it runs in one sandbox, the program in another.

    `check` is run again and again: each time its candidate knows one more result, and at the first call whose result it
    does not know, it ends and asks. The program computes that in a process of its own.

    Args:
        entry_point: the function that is checked.
        prompt: the beginning of the function, with what it needs. The program goes on from there or writes it anew.
        test: defines `check`, which may use what `prompt` defines.
        seconds: for each run; see CHECK_LIMITS.

    Raises:
        TestFailed: `check` ends in an error before it has called the function, or in one that no result can cause.
    """
    begun = f"{prompt}\n    pass\n" if prompt else ""
    defines = re.search(rf"^(?:(?:def|class) +{entry_point}\b|{entry_point}\b[^(=\n]*=)", program, re.MULTILINE)
    if program[:1].isspace():
        units = [f"{prompt}\n{program}"]
    else:  # a reply that goes on has lost the space before its first line
        units = [begun, program] if defines else [f"{prompt}\n    {program}"]
    answers: list[str] = []
    run = Run("ok")
    left = CHECK_LIMITS * seconds
    while len(answers) < MAX_CALLS and left > 0:
        script = _IMPORT.format(units=[begun, test]) + _CHECKER.format(answers=answers, entry_point=entry_point)
        checked = await sandbox.run(script, seconds=seconds)
        if checked.status == "failed":
            return Grade(checked, ("raised",))
        if checked.status == "ok":
            return Grade(run, ("right",))
        end = checked.output.rpartition("\n")[2]
        if end.startswith("!") or not (answers or end.startswith("(")):
            raise TestFailed(end[1:] or checked.errors.strip().rpartition("\n")[2] or checked.status)
        if not end.startswith("("):
            break
        run, (result,) = await _results(sandbox, units, [f"{entry_point}{end}"], min(seconds, left))
        left -= checked.seconds + run.seconds
        verdict = _verdict(result, None)
        if result is None or verdict == "unreadable":
            return Grade(run, (verdict,))
        answers.append(result)
    return Grade(run, ("wrong",))


_IMPORT = """
import os as _os, random as _random, sys as _sys, types as _types
from ast import literal_eval as _read
_module = _sys.modules["solution"] = _types.ModuleType("solution")
for _unit in {units!r}:
    try:
        exec(compile(_unit, "solution.py", "exec", dont_inherit=True), _module.__dict__)
    except SystemExit:
        pass
"""

_CHECKER = """
_random.seed(0)
_answers = map(_read, {answers!r})
def _candidate(*args, **kwargs):
    for answer in _answers:
        return answer
    print(end=f"\\n(*{{args!r}}, **{{kwargs!r}})", flush=True)
    _os._exit(1)
_module.{entry_point} = _candidate  # some checks use it by name
try:
    _module.check(_candidate)
except (ImportError, NameError) as error:
    print(end=f"\\n!{{type(error).__name__}}: {{error}}", flush=True)
    raise
"""


_CALLS = """
_results = []
for _call in {calls!r}:
    try:
        _results.append(repr(eval(_call, _module.__dict__)))
    except Exception:
        _results.append(None)
_sys.stdout.write("\\n" + repr(_results))
_sys.stdout.flush()
_os._exit(0)
"""


async def _results(
    sandbox: Sandbox, units: list[str], calls: list[str], seconds: float
) -> tuple[Run, Sequence[str | None]]:
    """Import a module that consists of `units`, then make `calls`, whose results are printed in the last line. A result is
    None if there is none; otherwise text that should be a literal."""
    nothing = [None] * len(calls)
    try:
        for unit in units:
            syntax_of(unit)
    except Unreadable as error:
        return Run("syntax", errors=str(error)), nothing
    run = await sandbox.run(_IMPORT.format(units=units) + _CALLS.format(calls=calls), seconds=seconds)
    try:
        written = literal_in(run.output.rpartition("\n")[2]) if run.status == "ok" else None
    except Unreadable:
        written = None
    if not isinstance(written, list) or len(written) != len(calls):
        return run, nothing
    return run, [text if isinstance(text, str) else None for text in written]
