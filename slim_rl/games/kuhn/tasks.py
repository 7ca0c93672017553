"""The tasks of Kuhn poker, its rewards in chips, and its exact solution."""

import itertools
import re
from collections.abc import Sequence

import numpy as np
import textarena as ta

from slim_rl.core.game import Decision
from slim_rl.core.player import ScriptedPlayer
from slim_rl.games.kuhn import theory
from slim_rl.games.kuhn.theory import BET, CALL, CARDS, CHECK, FOLD, INFORMATION_SETS, History
from slim_rl.games.textarena.adapter import SEATS, TextArenaGame
from slim_rl.games.textarena.parameters import Parameters
from slim_rl.games.textarena.tasks import MOVE, TextArenaTaskset

_CARD = re.compile(rf"Your card is: '([{CARDS}])'")
_LEANING = {"J": 0.4, "Q": 0.5, "K": 0.6}
"""Probability that a demonstrator bets or calls, by card."""
_CALLED = f"submitted move: '{CALL}'"


class KuhnGame(TextArenaGame):
    """One hand."""

    def rewards(self) -> dict[str, float]:
        """The chips that each seat wins: 2 if a bet was called, otherwise 1.

        TextArena reports only the winner. A seat that loses by illegal moves loses its chips in the pot; this is its
        ante, because a seat that has bet does not move again.
        """
        stake = 2 if any(sender == ta.GAME_ID and _CALLED in text for sender, text in self.state.logs) else 1
        return {seat: stake * won for seat, won in super().rewards().items()}


def card_of(game: TextArenaGame, seat: str) -> str:
    return CARDS[game.state.game_state["player_cards"][game.ids[seat]]]


class KuhnTaskset(TextArenaTaskset):
    """Kuhn poker."""

    opponents = ("random", "scripted")
    game = KuhnGame
    example = BET
    words = (*(f"Your card is: '{card}'" for card in CARDS), CHECK, BET, FOLD, CALL)

    def __init__(self, parameters: Parameters, seed: int):
        super().__init__(parameters, seed, "kuhn", "KuhnPoker-v0", max_rounds=1)

    def legal_moves(self, game: TextArenaGame) -> list[str]:
        return [f"[{move}]" for move in game.state.game_state["current_legal_action_tree"]]

    def demonstrated_move(self, game: TextArenaGame, rng: np.random.Generator) -> str:
        """Random, but it bets and calls a little more often with a better card. Without this a tiny model does not
        learn from training that its card matters."""
        assert game.turn is not None
        passive, active = self.legal_moves(game)
        return active if rng.random() < _LEANING[card_of(game, game.turn)] else passive

    def player(self, name: str, game: TextArenaGame, seat: str, seed: int) -> ScriptedPlayer:
        return EquilibriumPlayer(seat, seed) if name == "scripted" else super().player(name, game, seat, seed)

    def decisions(self) -> list[Decision]:
        return [self._decision(history, card) for history, card in INFORMATION_SETS]

    def _decision(self, history: History, card: str) -> Decision:
        seat = SEATS[len(history) % 2]
        game = next(game for seed in itertools.count() if card_of(game := self.deal(seed), seat) == card)
        observations, turns = [], []
        for move in history:
            if game.turn == seat:
                observations.append(game.read(seat))
                turns.append(move)
            game.move(move)
        observations.append(game.read(seat))
        return Decision(seat, observations, turns, self.legal_moves(game))

    def solve(self, probabilities: Sequence[Sequence[float]]) -> dict[str, float]:
        """In chips per hand: `exploitability`, 0 in equilibrium, and `value_first`, what the first seat wins if both
        seats play this way (-1/18 in equilibrium)."""
        strategy = dict(zip(INFORMATION_SETS, probabilities, strict=True))
        return {"exploitability": theory.exploitability(strategy), "value_first": theory.value(strategy)}


class EquilibriumPlayer(ScriptedPlayer):
    """Plays the equilibrium in which the first seat always bets a king: `equilibrium(1 / 3)`."""

    def __init__(self, seat: str, seed: int):
        self._seat, self._rng = seat, np.random.default_rng(seed)
        self._card = ""
        self._odds = dict(zip(INFORMATION_SETS, theory.equilibrium(1 / 3), strict=True))

    def turn(self, observation: str) -> str:
        if card := _CARD.search(observation):
            self._card = card[1]
        moves = MOVE.findall(observation.splitlines()[-1])
        said: History = () if self._seat == "first" else (CHECK,)
        if CALL in moves:
            said = (CHECK, BET) if self._seat == "first" else (BET,)
        return str(self._rng.choice(moves, p=self._odds[said, self._card]))
