"""How often the report's 95% intervals cover the truth, in the runs of fixtures/simulations.py.

python -m benchmarks.intervals [--runs 2000]
"""

import argparse

from tqdm import tqdm

from fixtures.simulations import SIMULATIONS, coverage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    for what in tqdm(SIMULATIONS, unit="simulation"):
        rate = coverage(what, runs, seed=1)
        error = (rate * (1 - rate) / runs) ** 0.5
        tqdm.write(f"{what}: covered in {rate:.1%} of {runs} runs (standard error {error:.1%})")


if __name__ == "__main__":
    main()
