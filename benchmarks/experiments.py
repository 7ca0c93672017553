"""A row for each experiment that `make seeds` and `make trap` have run: the figures of the README.

python -m benchmarks.experiments
"""

import dvc.api
import pandas as pd

COLUMNS = {
    "questions, base": "base.questions",
    "trained": "trained.questions",
    "wasted": "trained.wasted_share",
    "reward, base": "base.reward",
    "trained ": "trained.reward",
    "standard errors": "comparison.reward_difference_in_standard_errors",
    "oracle given information": "trained.oracle_given_information",
    "no-question Bayes": "bayes.reward",
    "verdict": "verdict",
}


def main() -> None:
    experiments = pd.DataFrame(dvc.api.exp_show())
    ended = experiments["Experiment"].notna() & (experiments["State"] != "Running")
    experiments = experiments[ended].set_index("Experiment").sort_index()
    if experiments.empty:
        raise SystemExit("There are no experiments yet; `make seeds` and `make trap` run them.")
    table = pd.DataFrame({title: experiments[name] for title, name in COLUMNS.items()})
    with pd.option_context("display.max_colwidth", None, "display.width", None):
        print(table.drop(columns="verdict").T.to_string(float_format="{:.3f}".format))
        print()
        for experiment, verdict in table["verdict"].items():
            print(f"{experiment}: {verdict}")


if __name__ == "__main__":
    main()
