"""The paper-reviewer matching game of DialOp, with a shy partner."""

import hashlib
from collections.abc import Iterator
from typing import Any

from slim_rl.config import Config, MatchingConfig
from slim_rl.errors import UserError
from slim_rl.games.game import ChatRules, Demonstration, Purpose, series_seed
from slim_rl.games.matching.board import Board, generate_boards
from slim_rl.games.matching.env import MatchingEnv
from slim_rl.games.matching.language import prompt
from slim_rl.games.matching.names import REVIEWERS
from slim_rl.games.matching.rules import SEATS, MatchingGame
from slim_rl.games.matching.scripted import demonstrate, demonstrate_answers, reference_player, shy_partner
from slim_rl.games.matching.shy import AlwaysAccepts, one_turn, shy_rules
from slim_rl.players.player import Player

__all__ = ["MatchingEnv", "MatchingGame", "MatchingKind", "generate_games", "kind", "load_game"]

_FEWER_QUESTIONS = 10
"""In one demonstration of so many the second seat is asked fewer questions than there may be: it must learn to
accept early too. Were they many more, the tiny model would not learn to answer: see docs/selfplay.md."""


def kind(config: Config, variant: str = "") -> "MatchingKind":
    if variant:
        raise UserError(f"The matching game has no variants; game must be matching, not matching:{variant}.")
    return MatchingKind(config)


class MatchingKind:
    """See `slim_rl.games.game.GameKind`."""

    name = "matching"
    seats = SEATS
    opponents = ()
    words = REVIEWERS
    """A score's name ("Ava Li - BLEU: ") stays whole."""

    def __init__(self, config: Config):
        self._config = config

    def games(self, purpose: Purpose, count: int) -> Iterator[dict[str, Any]]:
        seed = series_seed(self._config.seed, purpose)
        if not self._config.games.on_the_fly:
            yield from generate_games(count, seed, self._config.board)
            return
        for number in range(count):
            name = f"matching-{self._config.board.size}-{self._config.board.selection}-{seed}-seed-{number}"
            yield {"prompt": "", "game_state": {"seed": (seed + 1 << 32) + number}, "game_id": name}

    def load(self, line: dict[str, Any]) -> MatchingGame:
        state = line["game_state"]
        if "seed" in state:
            [board] = generate_boards(1, int(state["seed"]), self._config.board)
            return MatchingGame(board, self._config.games.max_turns, line["game_id"])
        return load_game(line, self._config.games.max_turns)

    def player(self, name: str, game: MatchingGame, seat: str, seed: int) -> Player:
        """`scripted`: the shy partner in the second seat, in the first one somebody who asks about all that it
        does not see; or a reference, see `reference_player`."""
        if name == "scripted":
            if seat == SEATS[1]:
                return shy_partner(game, seat, self._config.partner.always_accept)
            name = f"asks-{game.board.size**2}-table"
        return reference_player(name, game, self._config.board, seed, seat)

    def demonstrate(self, line: dict[str, Any], seat: str) -> Demonstration:
        game, warm = self.load(line), self._config.warmstart
        if seat == SEATS[0]:
            return demonstrate(game.board, warm.max_questions)
        digest = hashlib.sha256(game.game_id.encode()).digest()
        seed = int.from_bytes(digest[:8], "little")
        fewer = seed % _FEWER_QUESTIONS == 0
        questions = seed // _FEWER_QUESTIONS % warm.max_questions if fewer else warm.max_questions
        return demonstrate_answers(game.board, questions, seed)

    def chat_rules(self, seat: str) -> ChatRules:
        always_accept = self._config.partner.always_accept
        return ChatRules(shy_rules(always_accept), one_turn, AlwaysAccepts if always_accept else lambda p: p)


def generate_games(count: int, seed: int, config: MatchingConfig, processes: int = 1) -> Iterator[dict]:
    """The first `count` games of the series that `seed` and `config` name, as lines of a games file.

    A line has `prompt` (the agent's), `game_state` (`table`, `mask1`, `mask2`, `scale1`, `scale2`,
    `best_assignment_reward`), `ground_truth` (the same), `optimal_score` and `game_id`. The series is the
    same however many `processes` share the work.
    """
    for number, board in enumerate(generate_boards(count, seed, config, processes)):
        state = board.to_game_state()
        yield {
            "prompt": prompt(board.numbers(0), _private(board)),
            "game_state": state,
            "ground_truth": state,
            "optimal_score": board.best_assignment_reward,
            "game_id": f"matching-{config.size}-{config.selection}-{seed}-{number}",
        }


def load_game(line: dict, max_turns: int) -> MatchingGame:
    """The game that a line of a games file describes, ready to be played."""
    return MatchingGame(Board.from_game_state(line["game_state"]), max_turns, line["game_id"])


def _private(board: Board) -> bool:
    return bool((board.scales != 1).any())
