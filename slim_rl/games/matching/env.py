"""The matching game with `reset` and `step`, like the environments of DialOp and SLIME."""

from collections.abc import Mapping
from typing import Any

from slim_rl.games.matching.board import Board
from slim_rl.games.matching.language import InvalidTurn, Limits
from slim_rl.games.matching.rules import SEATS, MatchingGame


class MatchingEnv:
    """Plays one game at a time.

    An observation is a dict with `player-1` and `player-2` (text: what each sees new since the last step),
    `turn_player` (whose turn it is, None when the game is over), `done`, and `role` and `obs_str`: the chat
    message for the player whose turn it is, with everything it has seen since its own last turn.
    """

    def __init__(self, max_turns: int = 30):
        self.max_turns = max_turns
        self.game: MatchingGame | None = None
        self._unread: dict[str, str] = {}

    def reset(
        self, game_state: Mapping[str, Any], action_log: list[dict[str, Any]] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start on the board of `game_state`, and apply the turns of a log in DialOp's form, if there is one.

        Args:
            game_state: see `Board.from_game_state`; an `action_log` in it is applied.
            action_log: applied instead of the one in `game_state`.

        Returns:
            (observation, info).

        Raises:
            ValueError: the board or the log is damaged; the sentence says where.
        """
        self.game = MatchingGame(Board.from_game_state(game_state), Limits(self.max_turns))
        self._unread = dict.fromkeys(SEATS, "")
        apply_log(self.game, game_state.get("action_log", []) if action_log is None else action_log)
        return self._observation(), self._info()

    def step(self, text: str) -> tuple[dict[str, Any], bool, dict[str, Any]]:
        """Let the player whose turn it is say `text`; returns (observation, done, info)."""
        self._playing().step(text)
        observation = self._observation()
        return observation, observation["done"], self._info()

    def get_normalized_reward(self) -> float:
        """Value of the accepted assignment over the pooled optimum; 0 without an accepted proposal."""
        return self._playing().rewards()[SEATS[0]]

    def _playing(self) -> MatchingGame:
        if self.game is None:
            raise ValueError("No game has been started; call reset(game_state) first.")
        return self.game

    def _observation(self) -> dict[str, Any]:
        game = self._playing()
        texts = {seat: game.observe(seat) for seat in SEATS}
        for seat, text in texts.items():
            self._unread[seat] = "\n".join(filter(None, (self._unread[seat], text)))
        turn, message = game.turn, ""
        if turn:
            message, self._unread[turn] = self._unread[turn], ""
        return {**texts, "turn_player": turn, "done": turn is None, "role": "user", "obs_str": message}

    def _info(self) -> dict[str, Any]:
        game = self._playing()
        reward = self.get_normalized_reward()
        return {
            "num_msgs": game.messages,
            "score": round(reward * game.board.best_assignment_reward),
            "score_norm": reward,
            "truncated": game.truncated,
            **game.metrics(),
        }


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
