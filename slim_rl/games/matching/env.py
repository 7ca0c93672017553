"""The matching game with `reset` and `step`, like the environments of DialOp and SLIME."""

from collections.abc import Mapping
from typing import Any

from slim_rl.games.matching.board import Board
from slim_rl.games.matching.human import apply_log
from slim_rl.games.matching.rules import Limits, MatchingGame


class MatchingEnv:
    """One game at a time. An observation has `turn_player` (the seat that speaks next, None after the end), `obs_str`
    (what this seat has not read yet), `role` and `done`."""

    def __init__(self, max_turns: int = 30):
        self.max_turns = max_turns

    def reset(self, game_state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(observation, info) after the `action_log` of `game_state`, if it has one; raises ValueError if it is damaged."""
        self.game = MatchingGame(Board.from_game_state(game_state), Limits(self.max_turns))
        apply_log(self.game, game_state.get("action_log", []))
        return self._observation()

    def step(self, text: str) -> tuple[dict[str, Any], bool, dict[str, Any]]:
        """(observation, done, info) after the seat whose turn it is has said `text`."""
        self.game.move(text)
        observation, info = self._observation()
        return observation, observation["done"], info

    def _observation(self) -> tuple[dict[str, Any], dict[str, Any]]:
        turn = self.game.turn
        observation = {"turn_player": turn, "done": turn is None, "role": "user"}
        observation["obs_str"] = self.game.read(turn) if turn else ""
        return observation, {"score_norm": self.game.quality, "truncated": self.game.truncated, **self.game.metrics()}
