"""Two-player games of TextArena (Guertler et al. 2025, arXiv 2504.11442) as text games.

TextArena's environments are used without its wrappers; this adapter decides which messages a seat reads.
"""

import copy
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import textarena as ta
from textarena.envs.registration import ENV_REGISTRY
from textarena.wrappers import LLMObservationWrapper

from slim_rl.core.game import TextGame

SEATS: tuple[str, ...] = ("first", "second")

SPIRAL_OFFENDER, SPIRAL_OTHER = -1.5, 0.5
"""Rewards after an illegal move by SPIRAL's rule (Liu et al. 2025, arXiv 2506.24119)."""

_LIMIT = re.compile(r"turn limit|number of turns", re.IGNORECASE)  # TextArena gives the reason only in words


class TextArenaGame(TextGame):
    """One two-player game of TextArena.

    Seats are named by the order in which they move, not by TextArena's ids. TextArena's environments draw from
    Python's global random numbers. Each game has a stream of its own here, so games played at the same time do not
    affect each other, and the global stream does not change.

    Args:
        name: the name it is registered under, "Nim-v0".
        seed: of everything random.
        max_turns: turns of both seats together, illegal ones included; then the game is truncated without a winner.
        illegal_moves: `textarena`, its own rules (in most games one retry, then the game is lost), or `spiral`: the
            game ends at once.
        options: of the environment; they replace those it is registered with.
    """

    seats = SEATS

    def __init__(
        self,
        name: str,
        seed: int,
        max_turns: int,
        illegal_moves: Literal["textarena", "spiral"] = "textarena",
        game_id: str = "",
        **options: Any,
    ):
        self.game_id, self.turns = game_id, 0
        self.illegal_moves = dict.fromkeys(SEATS, 0)
        self.newest: dict[str, dict[ta.ObservationType, str]] = {seat: {} for seat in SEATS}
        """The last message of each type that a seat has read."""
        self._max_turns, self._spiral = max_turns, illegal_moves == "spiral"
        self._offender: str | None = None
        self._talks = _talks(name)
        self._random_state = random.Random(seed).getstate()
        with self._own_random():
            self._env = ta.make(f"{name}-raw", **options)
            self._env.reset(num_players=len(SEATS), seed=seed)
        first = self._env.state.current_player_id
        self.ids = {"first": first, "second": 1 - first}
        """TextArena's number for each seat."""

    @property
    def state(self) -> ta.State:
        """TextArena's own state; read it, do not change it."""
        return self._env.state

    @property
    def turn(self) -> str | None:
        if self.state.done or self._offender is not None or self.turns >= self._max_turns:
            return None
        return next(seat for seat, player in self.ids.items() if player == self.state.current_player_id)

    @property
    def truncated(self) -> bool:
        if self._offender is not None:
            return False
        if self.state.done:
            return bool(_LIMIT.search(str(self.state.game_info[0].get("reason", ""))))
        return self.turns >= self._max_turns

    def read(self, seat: str) -> str:
        player = self.ids[seat]
        if seat == self.turn:
            with self._own_random():
                _, messages = self._env.get_observation()
        else:
            messages, self.state.observations[player] = self.state.observations[player], []
        self.newest[seat] |= {kind: text for _, text, kind in messages}
        boards = [n for n, (*_, kind) in enumerate(messages) if kind == ta.ObservationType.GAME_BOARD]
        read = [
            f"[{self.state.role_mapping[sender]}] {text}" if sender != ta.GAME_ID else text
            for n, (sender, text, kind) in enumerate(messages)
            if n not in boards[:-1] and (sender == ta.GAME_ID or (sender != player and self._talks))
        ]
        return "\n".join(text.rstrip("\n") for text in read)

    def move(self, text: str) -> None:
        seat, state = self.turn, self.state
        if seat is None:
            raise ValueError("This game is over.")
        self.turns += 1
        info, errors = state.game_info[self.ids[seat]], state.error_count
        lost = info["invalid_move"]
        with self._own_random():
            self._env.step(text)
        if state.error_count > errors or info["invalid_move"] > lost:
            self.illegal_moves[seat] += 1
            self._offender = seat if self._spiral else None

    def allows(self, text: str) -> bool:
        """Whether `text` would be a legal move now; tried on a copy of the game."""
        instead = {  # not copied: what the copy does not need or cannot change
            id(self._random_state): self._random_state,
            id(self.state.logs): [],
            id(self.state.observations): {player: [] for player in self.ids.values()},
        }
        trial = copy.deepcopy(self, instead)
        trial.move(text)
        return trial.illegal_moves == self.illegal_moves

    def rewards(self) -> dict[str, float]:
        """TextArena's rewards by seat (in most games 1 and -1, or 0 and 0 for a draw), or SPIRAL's."""
        if self._offender is not None:
            return {seat: SPIRAL_OFFENDER if seat == self._offender else SPIRAL_OTHER for seat in SEATS}
        by_player = self.state.rewards if self.state.done else None
        return {seat: float((by_player or {}).get(player, 0)) for seat, player in self.ids.items()}

    def metrics(self) -> dict[str, float]:
        rewards, decided = self.rewards(), self.state.done or self._offender is not None
        drawn = int(decided and rewards["first"] == rewards["second"])
        metrics: dict[str, float] = {"turn_count": self.turns, "drawn": drawn}
        for seat in SEATS:
            metrics[f"{seat}.illegal_moves"] = self.illegal_moves[seat]
            metrics[f"{seat}.won"] = int(rewards[seat] > min(rewards.values()))
        return metrics

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """Use this game's stream as Python's global random numbers."""
        others = random.getstate()
        random.setstate(self._random_state)
        try:
            yield
        finally:
            self._random_state = random.getstate()
            random.setstate(others)


def _talks(name: str) -> bool:
    """Whether a seat reads the other seat's messages, and not only the game's reports of moves.

    This is so for games whose training wrapper in TextArena passes messages on.
    """
    spec = ENV_REGISTRY.get(f"{name}-train")
    return spec is None or LLMObservationWrapper in (spec.default_wrappers or ())
