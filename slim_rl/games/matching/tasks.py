"""The tasks of the matching game: boards, players, demonstrations, and the rules for a chat model."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from slim_rl.core.game import ChatRules, Demonstration, Purpose, Task, Taskset, seed_of, series_seed
from slim_rl.core.player import ScriptedPlayer
from slim_rl.games.matching.board import Board, generate_boards
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.partner import AlwaysAccepts, one_turn, shy_rules
from slim_rl.games.matching.rules import SEATS, Limits, MatchingGame, opening
from slim_rl.games.matching.scripted import Prober, ShyPartner, demonstrate, demonstrate_answers, reference_player

_FEWER_QUESTIONS = 10
"""One demonstration of the second seat in this many has fewer questions than `max_questions`, because the seat must
also learn to accept early. With many more of them the tiny model does not learn to answer: see
docs/results/selfplay-2026-11-23.md."""

_LESSONS = ((0.12, 0, False), (0.25, 2, True), (0.45, 3, False), (1.0, 64, False))
"""Up to these shares of the demonstrations: at most how many questions are shown, and whether the player sees more of
the board than in a game."""
_BLOCK = 64


class MatchingTaskset(Taskset):
    seats = SEATS
    study = "asking"
    parameters: Parameters

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        """A task's state is a board as DialOp records it, see `Board.to_game_state`, or with `on_the_fly` its seed
        (not in demonstrations, which no file stores); and what asking costs there.

        Tasks for demonstrations have `questions`, how many are shown. A curriculum: first reading
        scores, then proposing after several answers. Where turns are told, theirs have nothing to do with the partner's
        patience, and are often few: a demonstrator knows when to stop only where its turns end.
        """
        parameters, seed = self.parameters, series_seed(self.seed, purpose)
        name = f"matching-{parameters.size}-{parameters.selection}-{seed}"
        demonstrating = purpose == "demonstrations"
        boards = (
            [None] * count if parameters.on_the_fly and not demonstrating else generate_boards(count, seed, parameters)
        )
        for number, board in enumerate(boards):
            rng = np.random.default_rng([seed, number])
            most, sees_more = next((few, more) for share, few, more in _LESSONS if number < count * share)
            state: dict[str, Any] = {"seed": (seed + 1 << 32) + number}
            if board is not None:
                board = _with_more_seen(board, rng) if demonstrating and sees_more else board
                state = board.to_game_state()
            limits = _drawn_limits(parameters, rng)
            if demonstrating and limits.of_asking:
                drawn = 2 * int(rng.integers(1, _most_turns(parameters) // 2 + 1))
                limits = limits._replace(max_turns=drawn if parameters.turns_told else parameters.max_turns)
            state |= {"max_turns": limits.max_turns, "price": limits.price}
            if limits.patience is not None:
                state["patience"] = limits.patience
            if demonstrating:
                # The same number for a block of tasks, so that a batch of demonstrations has little padding.
                block = np.random.default_rng([seed, number // _BLOCK])
                state["questions"] = int(block.integers(min(most, parameters.max_questions) + 1))
            if board is None:
                yield Task(f"{name}-seed-{number}", state=state)
            else:
                read = opening(board, 0, limits, parameters.instructions == "short")
                best = format_proposal(board.best_assignment.tolist())
                yield Task(f"{name}-{number}", read, state, best, board.best_assignment_reward)

    def load(self, task: Task) -> MatchingGame:
        if "seed" in task.state:
            [board] = generate_boards(1, _whole(task, "seed"), self.parameters)
        else:
            board = Board.from_game_state(task.state)
        limits = Limits(
            min(_whole(task, "max_turns", self.parameters.max_turns), self.parameters.max_turns),
            _whole(task, "patience") if "patience" in task.state else None,
            _whole(task, "price", 0),
            self.parameters.turns_told,
        )
        return MatchingGame(board, limits, task.game_id, self.parameters.instructions == "short")

    def player(self, name: str, game: MatchingGame, seat: str, seed: int) -> ScriptedPlayer:
        """`scripted`: in the second seat the shy partner, in the first one a player that asks about every cell it
        does not see. `ignorant`: a shy partner that never knows a score. `probe`: see `Prober`. Every other name is that of a reference, see
        `reference_player`."""
        if name == "ignorant" or (name == "scripted" and seat == SEATS[1]):
            return ShyPartner(game.view(seat), self.parameters, game.limits, seed, ignorant=name == "ignorant")
        if name == "probe":
            return Prober(game, seat, seed)
        name = "asks-all-table" if name == "scripted" else name
        return reference_player(name, game, self.parameters, seed, seat)

    def demonstrate(self, task: Task, seat: str) -> Demonstration:
        game, parameters, seed = self.load(task), self.parameters, seed_of(task.game_id)
        most = min(parameters.max_questions, max(0, game.limits.max_turns // 2 - 1))
        if seat == SEATS[0]:
            return demonstrate(game, parameters, min(_whole(task, "questions", most), most), seed)
        fewer = seed % _FEWER_QUESTIONS == 0
        return demonstrate_answers(game, parameters, seed // _FEWER_QUESTIONS % max(most, 1) if fewer else most, seed)

    def chat_rules(self, seat: str) -> ChatRules:
        rules = ChatRules(shy_rules(self.parameters.always_accept), one_turn)
        return rules._replace(around=AlwaysAccepts) if self.parameters.always_accept else rules


def _with_more_seen(board: Board, rng: np.random.Generator) -> Board:
    """The board, of which the first player sees a larger share, drawn uniformly."""
    more = rng.random(board.table.shape) < rng.random()
    masks = np.stack([board.masks[0] | more, board.masks[1] | more])
    return Board(board.table, masks, board.scales, None if board.rough is None else board.rough & ~more)


def _drawn_limits(parameters: Parameters, rng: np.random.Generator) -> Limits:
    price = int(rng.integers(parameters.question_price[0], parameters.question_price[1] + 1))
    if parameters.patience is None:
        return Limits(parameters.max_turns, None, price, parameters.turns_told)
    patience = int(rng.integers(parameters.patience[0], parameters.patience[1] + 1))
    turns = max(2, patience + 1 + int(rng.integers(parameters.spare_turns[0], parameters.spare_turns[1] + 1)))
    return Limits(min(2 * turns, parameters.max_turns), patience, price, parameters.turns_told)


def _most_turns(parameters: Parameters) -> int:
    """The largest turn limit of a game, of both players together."""
    if parameters.patience is None:
        return parameters.max_turns
    return min(2 * (parameters.patience[1] + 1 + parameters.spare_turns[1]), parameters.max_turns)


def _whole(task: Task, name: str, default: int | None = None) -> int:
    value = task.state.get(name, default)
    if type(value) is not int or value < 0:
        raise ValueError(f"its {name} is {value!r}, not a whole number from 0 on")
    return value
