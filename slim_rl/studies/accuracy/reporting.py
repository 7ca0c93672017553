"""The report on tasks that are solved or not."""

from slim_rl.evaluation.study import Report, Results
from slim_rl.studies.accuracy.measures import read_accuracy

_METHODS = """A task is solved with a reward of at least {right}. The interval of a pass rate is Wilson's, with the effective
sample size that follows from the variance between tasks. pass@k, the probability that at least one of k samples solves a
task, is the unbiased estimate of Chen et al. (2021). Where both models meet at a large k, training makes solutions likelier
that the base model already finds."""


def report(results: Results) -> Report:
    accuracy = read_accuracy(results)
    return accuracy.report(
        f"Does training make the policy better at {results.game.name}?",
        accuracy.verdict,
        supported=accuracy.outcome == "improved",
        methods=_METHODS.format(right=accuracy.right),
        label=lambda row: "passed" if row.pass_rate else "not passed",
    )
