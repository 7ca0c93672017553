"""The report on calls."""

from slim_rl.evaluation.study import Report, Results
from slim_rl.studies.calls.measures import read_calls

_METHODS = """Forbidden: the token that begins a call is never drawn. Forced-K: the first K turns are calls made for the model;
then it may call no more. A price is deducted from the reward of free play; the policy does not know it."""


def report(results: Results) -> Report:
    calls = read_calls(results)
    return calls.report(
        f"Does the policy learn to call its tools in {results.game.name}?",
        calls.verdict,
        supported=calls.outcome == "supported",
        criteria=calls.criteria,
        methods=_METHODS,
        label=lambda row: f"{row.calls:.0f} calls",
    )
