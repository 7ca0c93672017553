"""The paper-reviewer matching game of DialOp, with a shy partner."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from slim_rl.config import MatchingConfig
from slim_rl.errors import UserError
from slim_rl.games.matching.board import Board, generate_boards
from slim_rl.games.matching.env import MatchingEnv
from slim_rl.games.matching.language import prompt
from slim_rl.games.matching.names import REVIEWERS
from slim_rl.games.matching.rules import MatchingGame

__all__ = ["WORDS", "MatchingEnv", "MatchingGame", "board_seed", "generate_games", "load_game", "read_games"]

WORDS = REVIEWERS
"""Where a tokenizer of the game's language should cut; a score's name ("Ava Li - BLEU: ") stays whole."""


Purpose = Literal["train", "evaluate", "demonstrations"]


def board_seed(seed: int, purpose: Purpose) -> int:
    """The seed of the series of boards for one purpose; no two purposes or run seeds share a series."""
    purposes = get_args(Purpose)
    return seed * len(purposes) + purposes.index(purpose)


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


def read_games(path: Path) -> list[dict]:
    """All lines of a games file, checked.

    Raises:
        UserError: the file is missing or empty, or a line is damaged; the sentence names file and line.
    """
    if not path.exists():
        raise UserError(f"There is no games file {path}; `dvc repro games` makes it.")
    games: dict[str, dict] = {}
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            line = json.loads(text)
            load_game(line, max_turns=1)
            if not isinstance(line["prompt"], str):
                raise ValueError("its prompt is not text")
            if line["game_id"] in games:
                raise ValueError(f"the game {line['game_id']} stands in the file already")
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
            raise UserError(f"{path}, line {number} is not a game: {reason}.".replace("..", ".")) from None
        games[line["game_id"]] = line
    if not games:
        raise UserError(f"The games file {path} is empty; at least one game is needed.")
    return list(games.values())


def _private(board: Board) -> bool:
    return bool((board.scales != 1).any())
