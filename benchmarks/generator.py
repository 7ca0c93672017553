"""Boards per second on one core, beside DialOp's own generator in the same run.

git clone https://github.com/jlin816/dialop
python -m benchmarks.generator --dialop dialop
"""

import importlib
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np

from slim_rl.games.matching.board import generate_boards
from slim_rl.games.matching.parameters import Parameters
from slim_rl.runtime.cli import argument_parser

FAITHFUL = Parameters(size=8, selection="dialop")
ROUNDS = 4


def dialop_boards(checkout: Path) -> Callable[[], object]:
    """A function that makes one board with DialOp's code in `checkout`."""
    if not (checkout / "dialop" / "games" / "optimization.py").is_file():
        sys.exit(f"{checkout} is not a checkout of github jlin816/dialop")
    for name in ("dialop", "dialop.games"):  # bare packages: DialOp's own import flask, for other games
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(checkout.joinpath(*name.split(".")))]
    random.seed(0)
    np.random.seed(0)
    return importlib.import_module("dialop.games.optimization").OptimizationGame({}).reset


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--dialop", type=Path, help="a checkout of github jlin816/dialop")
    parser.add_argument("--seconds", type=float, default=5, help=f"of each of {ROUNDS} rounds (default: 5)")
    options = parser.parse_args()
    makers: dict[str, Callable[[], object]] = {"slim_rl": partial(next, generate_boards(10**9, 0, FAITHFUL))}
    if options.dialop:
        makers["DialOp"] = dialop_boards(options.dialop)
    boards, seconds = dict.fromkeys(makers, 0), dict.fromkeys(makers, 0.0)
    for _ in range(ROUNDS):  # by turns, so that other load on the machine affects both
        for name, make in makers.items():
            start = time.perf_counter()
            while (spent := time.perf_counter() - start) < options.seconds:
                make()
                boards[name] += 1
            seconds[name] += spent
    for name in makers:
        print(f"{name}: {boards[name] / seconds[name]:.1f} boards a second, 8 x 8, one core")


if __name__ == "__main__":
    main()
