"""DialOp's human-human games: their boards as games to play, and what people did on them as facts."""

import json
from pathlib import Path

from slim_rl.errors import UserError
from slim_rl.games.matching.board import Board
from slim_rl.games.matching.env import MatchingEnv
from slim_rl.games.matching.rules import SEATS


def human_games(path: Path) -> list[dict]:
    """The recorded games as lines of a games file, with the `action_log` in their `game_state`.

    Raises:
        UserError: the file is missing or a line is damaged; the sentence names file and line.
    """
    if not path.exists():
        raise UserError(f"There is no file of human games {path}; it is part of the repository.")
    games = []
    for number, text in enumerate(path.read_text().splitlines(), start=1):
        try:
            state = json.loads(text)
            Board.from_game_state(state)
            games.append({"game_id": f"human-{state['game_id']}", "game_state": state})
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}, line {number} is not a human game: {error}.") from None
    return games


def replay(game: dict) -> MatchingEnv:
    """The environment after all that the two people said and did."""
    env = MatchingEnv(max_turns=10_000)  # people had no turn limit
    env.reset(game["game_state"])
    return env


def transcript(game: dict) -> list[tuple[str, str]]:
    """(seat, turn) as the two people took them."""
    turns = []
    for action in game["game_state"]["action_log"]:
        match action["type"]:
            case "message":
                text = f"[message] {action['message']['data']}"
            case "proposal":
                text = "[propose] " + action["proposal"].replace("<br/>", "\n").replace("&emsp; - ", "")
            case _:
                text = "[accept]" if action["response"]["accept"] else "[reject]"
        turns.append((SEATS[action["player"]], text))
    return turns
