"""Two-player games of TextArena (Guertler et al. 2025, arXiv 2504.11442) as games of ours.

TextArena's environments are used raw. What its wrappers do for a model is done here: which messages a seat
reads, and what counts as a move.
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

SEATS = ("first", "second")

SPIRAL_OFFENDER, SPIRAL_OTHER = -1.5, 0.5
"""What an illegal move earns by SPIRAL's rule (Liu et al. 2025, arXiv 2506.24119)."""

_LIMIT = re.compile(r"turn limit|number of turns", re.IGNORECASE)  # TextArena tells it in words only


class TextArenaGame:
    """One game of TextArena between two; see `slim_rl.games.game.Game`.

    Seats are named by the order of moving, whatever ids TextArena gives them. Its environments draw from
    Python's global random numbers: each game gets a stream of its own, so that games played at the same time
    do not disturb each other, and the global stream is left as it was.

    Args:
        name: as TextArena registers it, "Nim-v0".
        seed: of everything that is drawn.
        max_turns: turns of both seats together, illegal ones included, after which nobody has won.
        illegal_moves: `textarena`, whose rules they are (mostly one more try, then the game is lost), or
            `spiral`, which ends the game at once.
        options: for the environment, in place of those it is registered with.
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
        self.game_id = game_id
        self.turns = 0
        self.illegal_moves = dict.fromkeys(SEATS, 0)
        self.newest: dict[str, dict[ta.ObservationType, str]] = {seat: {} for seat in SEATS}
        """Of each sort of message, the last one that a seat has read."""
        self._max_turns = max_turns
        self._spiral = illegal_moves == "spiral"
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
        """TextArena's own; to look at, not to change."""
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

    def observe(self, seat: str) -> str:
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

    def step(self, text: str) -> None:
        seat, state = self.turn, self.state
        if seat is None:
            raise ValueError("This game is over; nobody has a turn.")
        self.turns += 1
        info, errors = state.game_info[self.ids[seat]], state.error_count
        lost = info["invalid_move"]
        with self._own_random():
            self._env.step(text)
        if state.error_count > errors or info["invalid_move"] > lost:
            self.illegal_moves[seat] += 1
            self._offender = seat if self._spiral else None

    def allows(self, text: str) -> bool:
        """Whether `text` would be a legal move now; found by trying it on a copy of the game."""
        instead = {  # what a copy can do without, or cannot change
            id(self._random_state): self._random_state,
            id(self.state.logs): [],
            id(self.state.observations): {player: [] for player in self.ids.values()},
        }
        trial = copy.deepcopy(self, instead)
        trial.step(text)
        return trial.illegal_moves == self.illegal_moves

    def rewards(self) -> dict[str, float]:
        """TextArena's own, by seat: 1, -1, or 0 each for a draw, with most games; or SPIRAL's."""
        if self._offender is not None:
            return {seat: SPIRAL_OFFENDER if seat == self._offender else SPIRAL_OTHER for seat in SEATS}
        given = self.state.rewards if self.state.done else None
        return {seat: float((given or {}).get(player, 0)) for seat, player in self.ids.items()}

    def facts(self) -> dict[str, float]:
        rewards = self.rewards()
        decided = self.state.done or self._offender is not None
        facts = {"turns": self.turns, "drawn": int(decided and rewards["first"] == rewards["second"])}
        for seat in SEATS:
            facts[f"{seat}.illegal_moves"] = self.illegal_moves[seat]
            facts[f"{seat}.won"] = int(rewards[seat] > min(rewards.values()))
        return facts

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """Inside, Python's global random numbers are this game's."""
        others = random.getstate()
        random.setstate(self._random_state)
        try:
            yield
        finally:
            self._random_state = random.getstate()
            random.setstate(others)


def _talks(name: str) -> bool:
    """Whether a seat hears what the other one said, not only what the game says came of it.

    So it is where TextArena's own wrapper for training passes it on: in games made of talk.
    """
    spec = ENV_REGISTRY.get(f"{name}-train")
    return spec is None or LLMObservationWrapper in (spec.default_wrappers or ())
