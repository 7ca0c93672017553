"""The tasks of the matching game: boards, players, demonstrations, and the rules for a chat model."""

from collections.abc import Iterator

from slim_rl.core.game import ChatRules, Demonstration, Purpose, Task, seed_of, series_seed
from slim_rl.core.player import ScriptedPlayer
from slim_rl.games.matching.board import Board, generate_boards
from slim_rl.games.matching.language import prompt
from slim_rl.games.matching.names import REVIEWERS
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.rules import SEATS, MatchingGame
from slim_rl.games.matching.scripted import demonstrate, demonstrate_answers, reference_player, shy_partner
from slim_rl.games.matching.shy import AlwaysAccepts, one_turn, shy_rules

_FEWER_QUESTIONS = 10
"""One demonstration of the second seat in this many has fewer questions than `max_questions`, because the seat must
also learn to accept early. With many more of them the tiny model does not learn to answer: see docs/selfplay.md."""


class MatchingTaskset:
    """See `slim_rl.core.game`: `Taskset`, `Demonstrates`, `Checked`, `HasPlayers` and `SeatsChatModels`."""

    seats = SEATS
    study = "asking"
    words = REVIEWERS
    """A score's name ("Ava Li - BLEU: ") stays whole."""

    def __init__(self, parameters: Parameters, seed: int):
        self.parameters, self._seed = parameters, seed

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        """A task's state is a board as DialOp records it, see `Board.to_game_state`, or with `on_the_fly` its seed."""
        given, seed = self.parameters, series_seed(self._seed, purpose)
        name = f"matching-{given.size}-{given.selection}-{seed}"
        if given.on_the_fly:
            for number in range(count):
                yield Task(f"{name}-seed-{number}", state={"seed": (seed + 1 << 32) + number})
            return
        for number, board in enumerate(generate_boards(count, seed, given)):
            yield Task(f"{name}-{number}", prompt(board.numbers(0), board.private), board.to_game_state())

    def check(self, task: Task) -> None:
        if "seed" in task.state:
            _seed_in(task)
        else:
            Board.from_game_state(task.state)

    def load(self, task: Task) -> MatchingGame:
        if "seed" in task.state:
            [board] = generate_boards(1, _seed_in(task), self.parameters)
        else:
            board = Board.from_game_state(task.state)
        return MatchingGame(board, self.parameters.max_turns, task.game_id)

    def player(self, name: str, game: MatchingGame, seat: str, seed: int) -> ScriptedPlayer:
        """`scripted`: in the second seat the shy partner, in the first one a player that asks about every cell it
        does not see. Every other name is that of a reference, see `reference_player`."""
        if name == "scripted":
            if seat == SEATS[1]:
                return shy_partner(game, seat, self.parameters.always_accept)
            name = f"asks-{game.board.size**2}-table"
        return reference_player(name, game, self.parameters, seed, seat)

    def demonstrate(self, task: Task, seat: str) -> Demonstration:
        game, most = self.load(task), self.parameters.max_questions
        if seat == SEATS[0]:
            return demonstrate(game.board, most)
        seed = seed_of(game.game_id)
        fewer = seed % _FEWER_QUESTIONS == 0
        return demonstrate_answers(game.board, seed // _FEWER_QUESTIONS % most if fewer else most, seed)

    def chat_rules(self, seat: str) -> ChatRules:
        rules = ChatRules(shy_rules(self.parameters.always_accept), one_turn)
        return rules._replace(around=AlwaysAccepts) if self.parameters.always_accept else rules


def _seed_in(task: Task) -> int:
    seed = task.state["seed"]
    if type(seed) is not int or seed < 0:
        raise ValueError(f"its seed is {seed!r}, not a whole number from 0 on")
    return seed
