"""One seat, one turn: its reply is a program."""

import ast
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

from slim_rl.core.errors import GameFailed
from slim_rl.core.game import Game
from slim_rl.core.message import Message, heard
from slim_rl.games.execution import Parameters
from slim_rl.sandbox import Run, Sandbox
from slim_rl.sandbox.grading import Grade, TestFailed
from slim_rl.sandbox.program import Unreadable, program_in, syntax_of

SEAT = "author"
Grader = Callable[[str], Awaitable[Grade]]
REWARDS = {
    "printed": 1.0,
    "silent": 0.5,
    "syntax_error": -0.5,
    "no_program": -0.5,
    "runtime_error": -1.0,
    "timeout": -1.0,
    "killed": -1.0,
}
"""`printed`: it ended well and printed something that is not blank. `silent`: it ended well. `no_program`: there is none
in the reply, or it cannot be told which block is it. `killed`: it crashed or printed too much."""
_ENDED = {"error": "runtime_error", "syntax": "syntax_error"}


class Execution(Game):
    """
    Args:
        grade: grades a program by hidden tests, for `reward: tests`.
    """

    seats = (SEAT,)
    step_seconds = math.inf
    """The sandbox bounds each program, and waiting for a worker is nobody's failure."""

    def __init__(self, game_id: str, prompt: str, parameters: Parameters, sandbox: Sandbox, grade: Grader):
        self.game_id = game_id
        self._prompt, self._parameters, self._sandbox, self._grade = prompt, parameters, sandbox, grade
        self._program: str | None = None
        self._outcome = ""
        self._passed = False

    @property
    def turn(self) -> str | None:
        return None if self._outcome else SEAT

    async def observe(self, seat: str) -> Sequence[Message]:
        return heard(self._prompt)

    async def step(self, message: Message) -> None:
        program = program_in(message.written)
        if program is None:
            self._outcome = "no_program"
            return
        run = await self._run(program)
        if run.status == "failed":
            raise GameFailed(f"SandboxFailed: {run.errors}")
        self._program = program
        self._outcome = _ENDED.get(run.status, run.status)
        if run.status == "ok":
            self._outcome = "printed" if run.output.strip() else "silent"

    async def _run(self, program: str) -> Run:
        if self._parameters.reward == "execution":
            return await self._sandbox.run(program, seconds=self._parameters.seconds)
        try:
            graded = await self._grade(program)
        except TestFailed as error:
            reason = f"the test of {self.game_id} failed for a reason of its own: {error}"
            raise GameFailed(f"TestFailed: {reason}") from None
        self._passed = graded.passed
        return graded.run

    def rewards(self) -> Mapping[str, float]:
        if self._parameters.reward == "tests":
            return {SEAT: float(self._passed)}
        return {SEAT: REWARDS.get(self._outcome, 0.0)}

    def metrics(self) -> Mapping[str, float]:
        """`runs`, and each outcome of REWARDS, 0 or 1; `lines` of the program; `degenerate`: see `is_constant`."""
        outcomes, program = {name: float(name == self._outcome) for name in REWARDS}, self._program or ""
        runs = outcomes["printed"] + outcomes["silent"]
        return {"runs": runs, **outcomes, "lines": len(program.splitlines()), "degenerate": is_constant(program)}


_CONSTANT = (
    ast.Module, ast.Expr, ast.Call, ast.Constant, ast.Name, ast.Load, ast.Store, ast.Assign, ast.Pass, ast.keyword,
)  # fmt: skip


def is_constant(program: str) -> bool:
    """Whether a program computes nothing: it only names constants and prints them."""
    try:
        nodes = list(ast.walk(syntax_of(program)))
    except Unreadable:
        return False
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    only_prints = all(isinstance(called, ast.Name) and called.id == "print" for called in calls)
    return bool(calls) and only_prints and all(isinstance(node, _CONSTANT) for node in nodes)
