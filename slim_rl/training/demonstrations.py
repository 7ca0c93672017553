"""What a model imitates: demonstrations of several games, and each as a tree of tokens.

The path of turns, with a closing that branches off before each of them, is one sequence under a tree mask. That teaches
how to close after any number of turns without teaching how many to take. The choice between them is made in the first
token in which a turn and a closing differ. The loss up to that token is weighted by the probability that a demonstrator
goes on or stops.
"""

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from slim_rl.core.errors import UserError
from slim_rl.core.game import Demonstration
from slim_rl.games import NamedGame, policy_seats
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.tasks import draw


class Demonstrations:
    """What a model imitates: demonstrations of several games, in the ratio of their weights.

    Args:
        last_seat: this number of first demonstrations show the last of the policy's seats. They are of the last tasks,
            because a game's tasks may come in lessons for the first seat. After them, and in `alternating`, the seats
            take turns.

    Raises:
        UserError: a game does not demonstrate.
    """

    def __init__(self, games: Mapping[str, NamedGame], count: int, last_seat: int):
        weights = {name: game.parameters.weight for name, game in games.items()}
        self._games, self._last_seat = games, last_seat
        drawn = list(itertools.islice(draw(weights), count))
        self._drawn = drawn[count - last_seat :] + drawn[: count - last_seat]
        counts = Counter(name for name, _ in drawn)
        self._tasks = {name: list(game.taskset.tasks("demonstrations", counts[name])) for name, game in games.items()}

    def __len__(self) -> int:
        return len(self._drawn)

    def __getitem__(self, number: int) -> Demonstration:
        name, place = self._drawn[number]
        return self._show(name, place, -1 if number < self._last_seat else place)

    def alternating(self, count: int) -> list[Demonstration]:
        """`count` tasks evenly over all of them, because demonstrations may come in lessons; shown by the policy's seats in
        turn."""
        count = min(count, len(self))
        chosen = [self._drawn[number * len(self) // count] for number in range(count)]
        turns = {name: itertools.count() for name in self._games}
        return [self._show(name, place, next(turns[name])) for name, place in chosen]

    @property
    def words(self) -> list[str]:
        """Where a tokenizer for these games should cut; empty if one of them has no such places."""
        words = [taskset.words for taskset in (game.taskset for game in self._games.values())]
        return list(dict.fromkeys(word for of_one in words for word in of_one)) if all(words) else []

    def _show(self, name: str, place: int, seat: int) -> Demonstration:
        seats = policy_seats(self._games[name])
        demonstration = self._games[name].taskset.demonstrate(self._tasks[name][place], seats[seat % len(seats)])
        if demonstration is None:
            raise UserError(
                f"The game {name} has no demonstrations, so model.base cannot be tiny. Name a checkpoint there, "
                "without warmstart.checkpoint."
            )
        return demonstration


class Tree(NamedTuple):
    """One demonstration in tokens; numpy arrays of int64 but for the weights."""

    ids: np.ndarray
    """(tokens,): the path, then the branches."""
    positions: np.ndarray
    """(tokens,): the token's position in its dialogue."""
    branches: np.ndarray
    """(tokens,): 0 on the path, another number on each branch."""
    forks: np.ndarray
    """(tokens,): number of tokens of the path that a branch's token attends to; 0 on the path itself."""
    predictors: np.ndarray
    """(targets,): index of the token whose output predicts the target."""
    targets: np.ndarray
    """(targets,): token ids."""
    weights: np.ndarray
    """(targets,) float32."""


class HeldOut(NamedTuple):
    """A demonstration to measure on."""

    turns: list[int]
    """Before each of its closings."""
    tree: Tree


def hold_out(demonstration: Demonstration, renderer: Renderer, stop_probability: float) -> HeldOut:
    turns = [k for k, closing in enumerate(demonstration.closings) if closing is not None]
    return HeldOut(turns, encode_tree(demonstration, renderer, stop_probability))


def encode_tree(demonstration: Demonstration, renderer: Renderer, stop_probability: float) -> Tree:
    """A demonstration in tokens.

    Args:
        stop_probability: that a demonstrator closes instead of taking one more turn, where `demonstration` leaves it
            open.
    """
    path: list[int] = []
    learn: list[tuple[int, int, float]] = []  # predictor, target, weight
    closings: list[tuple[int, list[int], int, float]] = []  # fork, tokens, how many of them choose, their weight
    may_stop = any(closing is not None for closing in demonstration.closings[:-1])
    for i in range(len(demonstration.observations)):
        read = demonstration.read(i)
        path += renderer.continuation(read) if i else renderer.opening(read, demonstration.tools)
        last, closing = i == len(demonstration.turns), demonstration.closings[i]
        chosen = _alike(renderer, demonstration, i) + 1
        stop = 0.0 if closing is None else stop_probability if may_stop else 1.0
        if demonstration.stopping:
            stop = demonstration.stopping[i]
            if last and stop < 1:  # it could have gone on, and nothing shows how
                stop = 0.0
        if closing is not None:
            closings.append((len(path), renderer.turn(closing), chosen, stop))
        if not last:
            said = renderer.turn(demonstration.turns[i])
            learn += _targets(len(path) - 1, len(path), said, chosen, 1 - stop)
            path += said

    ids, positions = list(path), list(range(len(path)))
    branches, forks = [0] * len(path), [0] * len(path)
    for number, (fork, said, chosen, stop) in enumerate(closings, start=1):
        learn += _targets(fork - 1, len(ids), said, chosen, stop)
        ids += said
        positions += range(fork, fork + len(said))
        branches += [number] * len(said)
        forks += [fork] * len(said)
    predictors, targets, weights = map(np.array, zip(*learn, strict=True))
    context = np.array([ids, positions, branches, forks])
    return Tree(context[0], context[1], context[2], context[3], predictors, targets, weights.astype(np.float32))


def _alike(renderer: Renderer, demonstration: Demonstration, i: int) -> int:
    """Number of tokens with which both closing i and a turn in its place begin."""
    closing, turns = demonstration.closings[i], demonstration.turns
    if closing is None or not turns:
        return 0
    both = zip(renderer.turn(closing), renderer.turn(turns[min(i, len(turns) - 1)]), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))


def _targets(
    before: int, start: int, said: list[int], chosen: int, choice_weight: float
) -> list[tuple[int, int, float]]:
    """(predictor, target, weight) for each token of `said`, which begins at index `start` and follows `before`; its
    first `chosen` tokens have the weight of the choice."""
    predictors = [before, *range(start, start + len(said) - 1)]
    weights = [choice_weight if n < chosen else 1.0 for n in range(len(said))]
    return list(zip(predictors, said, weights, strict=True))
