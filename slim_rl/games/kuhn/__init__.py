"""Kuhn poker, one hand of TextArena's, in chips; small enough to be computed through."""

import itertools
import re
from collections.abc import Sequence

import numpy as np
import textarena as ta

from slim_rl.config import Config
from slim_rl.errors import UserError
from slim_rl.games.game import Decision
from slim_rl.games.kuhn.theory import (
    BET,
    CALL,
    CARDS,
    CHECK,
    FOLD,
    INFORMATION_SETS,
    History,
    equilibrium,
    exploitability,
    value,
)
from slim_rl.games.textarena import MOVE, SEATS, TextArenaGame, TextArenaKind
from slim_rl.players.player import Player

_CARD = re.compile(rf"Your card is: '([{CARDS}])'")
_LEANING = {"J": 0.4, "Q": 0.5, "K": 0.6}
"""How often a demonstrator bets or calls."""
_CALLED = f"submitted move: '{CALL}'"


class KuhnGame(TextArenaGame):
    """One hand; see `slim_rl.games.game.Game`."""

    def card(self, seat: str) -> str:
        return CARDS[self.state.game_state["player_cards"][self.ids[seat]]]

    def rewards(self) -> dict[str, float]:
        """The chips that each seat wins: 2 if a bet was called, otherwise 1.

        TextArena says only who won, and forgets bets in its pot. Who loses by illegal moves loses the chips
        that it has in the pot; that is its ante, because who has bet does not move again.
        """
        stake = 2 if any(sender == ta.GAME_ID and _CALLED in text for sender, text in self.state.logs) else 1
        return {seat: stake * won for seat, won in super().rewards().items()}


class KuhnKind(TextArenaKind):
    """See `slim_rl.games.game.SolvedKind`."""

    opponents = ("random", "scripted")
    game = KuhnGame
    example = BET
    words = (*(f"Your card is: '{card}'" for card in CARDS), CHECK, BET, FOLD, CALL)

    def __init__(self, config: Config):
        super().__init__(config, "kuhn", "KuhnPoker-v0", max_rounds=1)

    def legal_moves(self, game: KuhnGame) -> list[str]:
        return [f"[{move}]" for move in game.state.game_state["current_legal_action_tree"]]

    def demonstrated_move(self, game: KuhnGame, rng: np.random.Generator) -> str:
        """At random, but a little more often for money with a better card: a tiny model to which its card never
        made a difference does not find out by itself that it has one."""
        passive, active = self.legal_moves(game)
        return active if rng.random() < _LEANING[game.card(game.turn)] else passive

    def player(self, name: str, game: KuhnGame, seat: str, seed: int) -> Player:
        if name == "scripted":
            return EquilibriumPlayer(seat, seed)
        if name == "random":
            return super().player(name, game, seat, seed)
        raise ValueError(f"there is no player {name!r} of kuhn; there are random and scripted")

    def decisions(self) -> list[Decision]:
        return [self._decision(history, card) for history, card in INFORMATION_SETS]

    def _decision(self, history: History, card: str) -> Decision:
        seat = SEATS[len(history) % 2]
        game = next(game for seed in itertools.count() if (game := self.deal(seed)).card(seat) == card)
        observations, turns = [], []
        for move in history:
            if game.turn == seat:
                observations.append(game.observe(seat))
                turns.append(move)
            game.step(move)
        observations.append(game.observe(seat))
        said = "".join(f", {move.strip('[]')}" for move in history)
        return Decision(f"{seat}: {card}{said}", seat, observations, turns, self.legal_moves(game))

    def solve(self, probabilities: Sequence[Sequence[float]]) -> dict[str, float]:
        """In chips a hand: `exploitability`, 0 in equilibrium, and `value_first`, what the first seat wins if
        both play so (-1/18 in equilibrium)."""
        strategy = dict(zip(INFORMATION_SETS, probabilities, strict=True))
        return {"exploitability": exploitability(strategy), "value_first": value(strategy)}


class EquilibriumPlayer:
    """Plays the equilibrium in which the first seat always bets a king: `equilibrium(1 / 3)`."""

    def __init__(self, seat: str, seed: int):
        self._seat, self._rng = seat, np.random.default_rng(seed)
        self._card = ""
        self._odds = dict(zip(INFORMATION_SETS, equilibrium(1 / 3), strict=True))

    async def respond(self, observation: str) -> str:
        return self.turn(observation)

    def recall(self, observation: str, text: str) -> None:
        self.turn(observation)

    def turn(self, observation: str) -> str:
        if card := _CARD.search(observation):
            self._card = card[1]
        moves = MOVE.findall(observation.splitlines()[-1])
        said = () if self._seat == "first" else (CHECK,)
        if CALL in moves:
            said = (CHECK, BET) if self._seat == "first" else (BET,)
        return str(self._rng.choice(moves, p=self._odds[said, self._card]))


def kind(config: Config, variant: str) -> KuhnKind:
    if variant:
        raise UserError(f"kuhn has no variants, but {variant!r} was asked for.")
    return KuhnKind(config)
