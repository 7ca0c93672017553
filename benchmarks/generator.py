"""How fast boards are generated, compared with DialOp's own generator, in one run, on one core.

    git clone https://github.com/jlin816/dialop
    python benchmarks/generator.py --dialop dialop

Without a checkout the peer is the plain rules: three assignments by scipy for each candidate.
`--bayes` also prints what a player that asks nothing earns, by its own view and by `posterior_mean`.
"""

import argparse
import importlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np

from slim_rl.games.matching.board import (
    Board,
    assignment_by_view,
    assignment_value,
    draw,
    generate_boards,
    optimal_assignment,
    posterior_mean,
)
from slim_rl.games.matching.parameters import Parameters

HUMAN = Path(__file__).parents[1] / "data" / "human" / "human_games.jsonl"
FAITHFUL = Parameters(size=8, selection="dialop")


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


def plain_boards() -> Iterator[Board]:
    """Boards by the plain rules, one candidate after the other."""
    rng = np.random.default_rng(0)
    while True:
        tables, masks = draw(1, rng, FAITHFUL)
        board = Board(tables[..., 0].astype(int), masks[..., 0], rng.uniform(*FAITHFUL.scale_range, 2))
        alone = [assignment_value(board.table, assignment_by_view(board, mask)) for mask in board.masks]
        if max(alone) * FAITHFUL.stake < board.best_assignment_reward:
            yield board


def compare(makers: dict[str, Callable[[], object]], rounds: int, seconds: float) -> dict[str, float]:
    """Boards per second of each maker; they take turns, so other load on the machine affects all of them."""
    made, spent = dict.fromkeys(makers, 0), dict.fromkeys(makers, 0.0)
    for _ in range(rounds):
        for name, make in makers.items():
            start = time.perf_counter()
            while time.perf_counter() - start < seconds:
                make()
                made[name] += 1
            spent[name] += time.perf_counter() - start
    return {name: made[name] / spent[name] for name in makers}


def bayes(name: str, boards: list[Board], config: Parameters) -> str:
    """What player 1 earns without questions: mean normalised reward ± standard error."""
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    means = [posterior_mean(board, 0, config, rng) for board in boards]
    seconds = (time.perf_counter() - start) / len(boards)
    by_view = [assignment_by_view(board, board.masks[0]) for board in boards]
    texts = []
    for player, assignments in (("own view", by_view), ("Bayes", map(optimal_assignment, means))):
        earned = [
            assignment_value(board.table, assignment) / board.best_assignment_reward
            for board, assignment in zip(boards, assignments, strict=True)
        ]
        texts.append(f"{player} {np.mean(earned):.3f} ± {np.std(earned, ddof=1) / len(earned) ** 0.5:.3f}")
    return f"{name}: {len(boards)} boards, {', '.join(texts)}, {seconds:.4f} s per board"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialop", type=Path, help="a checkout of github jlin816/dialop")
    parser.add_argument("--bayes", action="store_true", help="also measure a player that asks nothing")
    parser.add_argument("--seconds", type=float, default=5, help="of each of 4 turns (default: 5)")
    args = parser.parse_args()

    ours = partial(next, generate_boards(10**9, 0, FAITHFUL))
    peer_name, peer = "the plain rules (no --dialop given)", partial(next, plain_boards())
    if args.dialop:
        peer_name, peer = "DialOp's own generator", dialop_boards(args.dialop)
    rates = compare({"slim_rl": ours, peer_name: peer}, 4, args.seconds)
    for name, rate in rates.items():
        print(f"{name}: {rate:.1f} boards per second, 8 x 8, one core")
    print(f"ratio: {rates['slim_rl'] / rates[peer_name]:.0f}")

    if args.bayes:
        human = [Board.from_game_state(json.loads(line)) for line in HUMAN.read_text().splitlines()]
        print(bayes("human boards (8 x 8, dialop)", human, FAITHFUL), flush=True)
        for selection in ("dialop", "stakes"):
            config = Parameters(size=3, selection=selection)
            boards = list(generate_boards(1024, 1, config))
            print(bayes(f"generated boards (3 x 3, {selection})", boards, config), flush=True)


if __name__ == "__main__":
    main()
