"""DialOp's human-human games: their boards as tasks, and what people said and did on them."""

import json
from pathlib import Path
from typing import Any

from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.games.matching.board import Board
from slim_rl.games.matching.rules import SEATS, InvalidTurn, Limits, MatchingGame


def human_games(path: Path) -> list[Task]:
    """The recorded games; the state of each is DialOp's record, with what people did as its `action_log`.

    Raises:
        UserError: the file is missing or a line is damaged; the sentence names file and line.
    """
    if not path.is_file():
        raise UserError(f"There is no file of human games {path}; it is part of the repository.")
    tasks = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            tasks.append(_checked(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)[:300]
            raise UserError(f"{path}, line {number} is not a human game: {reason.removesuffix('.')}.") from None
    return tasks


def _checked(state: object) -> Task:
    if not isinstance(state, dict):
        raise ValueError("it is not a JSON object")
    json.dumps(state, ensure_ascii=False).encode()  # raises ValueError for an unpaired surrogate
    number = state["game_id"]
    if type(number) is not int:
        raise ValueError(f"its game_id is {number!r}, not a whole number")
    task = Task(f"human-{number}", state=state)
    game = replay(task)
    transcript(task)
    earned = round(game.rewards()[SEATS[0]] * game.board.best_assignment_reward)
    if state["proposal_reward"] != earned:
        raise ValueError(f"it records proposal_reward {state['proposal_reward']!r}, but its log earns {earned}")
    return task


def replay(task: Task) -> MatchingGame:
    """The game after all that the two people said and did."""
    game = MatchingGame(Board.from_game_state(task.state), Limits(10_000), task.game_id)  # people had no turn limit
    apply_log(game, task.state["action_log"])
    return game


def transcript(task: Task) -> list[tuple[str, str]]:
    """(seat, turn) in the order in which the two people took them."""
    turns = []
    for action in task.state["action_log"]:
        match action["type"]:
            case "message":
                text = "[message] " + action["message"]["data"]
            case "proposal":
                text = ("[propose] " + action["proposal"]).replace("<br/>", "\n").replace("&emsp; - ", "")
            case _:
                text = "[accept]" if action["response"]["accept"] else "[reject]"
        turns.append((SEATS[action["player"]], text))
    return turns


def apply_log(game: MatchingGame, log: object) -> None:
    """Take the turns of a log in DialOp's form.

    Raises:
        ValueError: the log is damaged; the sentence says where.
    """
    if not isinstance(log, list):
        raise ValueError("The action log is not a list.")
    for number, action in enumerate(log, start=1):
        try:
            _apply(game, action)
        except (KeyError, TypeError, ValueError) as error:
            reason = error if isinstance(error, InvalidTurn) else f"{type(error).__name__} {error}"
            raise ValueError(f"Action {number} of the action log cannot be applied: {reason}.") from None
        game.turns += 1


def _apply(game: MatchingGame, action: dict[str, Any]) -> None:
    player = {0: 0, 1: 1}[action["player"]]
    match action["type"]:
        case "message":
            game.say(player, action["message"]["data"])
        case "proposal":
            papers = dict(action["proposal_ids"])
            everyone = list(range(game.board.size))
            if sorted(papers) != everyone or sorted(papers.values()) != everyone:
                raise InvalidTurn("its proposal does not give every reviewer a paper of its own")
            game.propose(player, tuple(int(papers[reviewer]) for reviewer in everyone))
        case "proposal_response":
            if game.proposal is None:
                raise InvalidTurn("it answers a proposal that was not made")
            game.answer(player, bool(action["response"]["accept"]))
        case other:
            raise InvalidTurn(f"its type is {other!r}, not message, proposal or proposal_response")
