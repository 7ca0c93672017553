"""Any two-player game of TextArena: `textarena:NAME`, by the name it is registered with there."""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from rapidfuzz import fuzz, process
from textarena import ObservationType
from textarena.envs.registration import ENV_REGISTRY

from slim_rl.config import Config
from slim_rl.errors import UserError
from slim_rl.games.game import ChatRules, Demonstration, Purpose, series_seed
from slim_rl.games.textarena.adapter import SEATS, TextArenaGame
from slim_rl.players.player import Player

__all__ = ["MOVE", "SEATS", "TextArenaGame", "TextArenaKind", "kind"]

MOVE = re.compile(r"\[[^\[\]\n]+\]")
"""How TextArena's games want a move, and how they list moves."""
_CELL = re.compile(r"(?<!\S)[^\sa-z\d]\s")  # one sign alone, as boards are drawn with
_MOST = 16  # numbers that are tried in moves where none is listed
_SERIES = 10**9  # more than the games of one series

_SYSTEM = """\
You play a game against an opponent, and you want to win. You are told the rules first, then what happens.
Answer with your move only, in square brackets as the rules ask, for example {example}. No explanation."""


class TextArenaKind:
    """A game of TextArena; see `slim_rl.games.game.GameKind`. Kinds that know more derive from it.

    Raises:
        UserError: it cannot be played by two, or not on this machine; the sentence says why.
    """

    seats = SEATS
    opponents: tuple[str, ...] = ("random",)
    game = TextArenaGame
    """What its games are."""
    example = "[4]"
    """A move, for a chat model's instruction."""

    def __init__(self, config: Config, name: str, environment: str, **options: Any):
        self.name = name
        self._config, self._environment, self._options = config, environment, options
        try:
            self.deal(seed=0)
        except AssertionError as error:
            raise UserError(f"TextArena's {environment} is not a game for two: {_line(error)}.") from None
        except Exception as error:  # whatever an environment lacks here: a syntax, a word list, a key
            raise UserError(
                f"TextArena's {environment} cannot be played here: {type(error).__name__}: {_line(error)}."
            ) from None

    def deal(self, seed: int, game_id: str = "") -> TextArenaGame:
        """A new game, all that is random in it drawn from `seed`."""
        limit, illegal = self._config.games.max_turns, self._config.textarena.illegal_moves
        return self.game(self._environment, seed, limit, illegal, game_id, **self._options)

    @cached_property
    def words(self) -> Sequence[str]:
        """Moves and single signs, from a few games at random."""
        texts = [text for seed in range(8) for text in self._random_texts(seed)]
        found = {word for text in texts for word in MOVE.findall(text) + _CELL.findall(text)}
        return sorted(found, key=lambda word: (-len(word), word))

    def _random_texts(self, seed: int) -> Iterator[str]:
        game, rng = self.deal(seed), np.random.default_rng(seed)
        while (seat := game.turn) is not None:
            observation = game.observe(seat)
            yield observation
            try:
                move = self.random_move(game, rng)
            except UserError:
                return
            yield move
            game.step(move)

    def games(self, purpose: Purpose, count: int) -> Iterator[dict[str, Any]]:
        series = series_seed(self._config.seed, purpose)
        most = self._config.textarena.opening_moves if purpose != "evaluate" else 0
        for number in range(count):
            seed = series * _SERIES + number
            state = {"seed": seed}
            if most:
                state["opening_moves"] = int(np.random.default_rng((seed, 2)).integers(most + 1))
            yield {
                "prompt": self.deal(seed).observe("first"),
                "game_state": state,
                "game_id": f"{self.name.replace(':', '-')}-{series}-{number}",
            }

    def load(self, line: dict[str, Any]) -> TextArenaGame:
        state, game_id = line["game_state"], line["game_id"]
        for name in ("seed", *({"opening_moves"} & set(state))):
            if type(state[name]) is not int or state[name] < 0:
                raise ValueError(f"its {name} is {state[name]!r}, not a whole number from 0 on")
        return self._opened(state["seed"], state.get("opening_moves", 0), game_id)

    def _opened(self, seed: int, moves: int, game_id: str) -> TextArenaGame:
        """The game after so many random moves, or fewer if they would end it."""
        game, rng = self.deal(seed, game_id), np.random.default_rng((seed, 3))
        for made in range(moves):
            if (legal := self.legal_moves(game)) is None:
                raise UserError(f"textarena.opening_moves: the legal moves of {self.name} are not known.")
            game.step(str(rng.choice(legal)))
            if game.turn is None:
                return self._opened(seed, made, game_id)
        return game

    def player(self, name: str, game: TextArenaGame, seat: str, seed: int) -> Player:
        if name == "random":
            return RandomPlayer(self, game, seed)
        raise ValueError(f"there is no player {name!r} of {self.name}; there is random")

    def demonstrate(self, line: dict[str, Any], seat: str) -> Demonstration:
        """Random legal play of both seats; TextArena has no better player for every game."""
        game = self.load(line)
        rng = np.random.default_rng((line["game_state"]["seed"], 1))
        observations, turns = [], []
        while game.turn is not None:
            mine, observation = game.turn == seat, game.observe(game.turn)
            move = self.demonstrated_move(game, rng)
            if mine:
                observations.append(observation)
                turns.append(move)
            game.step(move)
        if not turns:  # the other one ended it at once
            state = {**line["game_state"], "opening_moves": 0}
            return self.demonstrate({**line, "game_state": state}, seat)
        return Demonstration(observations, turns[:-1], [None] * (len(turns) - 1) + turns[-1:])

    def chat_rules(self, seat: str) -> ChatRules:
        return ChatRules(_SYSTEM.format(example=self.example), self._mend)

    def _mend(self, observation: str, reply: str) -> str:
        if not (moves := MOVE.findall(reply)):
            raise ValueError(
                f"There is no move in your reply. Write it in square brackets, like {self.example}."
            )
        return moves[-1]

    def legal_moves(self, game: TextArenaGame) -> list[str] | None:
        """All that the seat whose turn it is may say; None where only trying tells."""
        return None

    def random_move(self, game: TextArenaGame, rng: np.random.Generator) -> str:
        """One of the legal moves, each as likely. Where they are not known, those are tried that stand in
        brackets on the board; if none is legal, one or two numbers up to the largest that the seat reads;
        then the examples in its prompt.

        Raises:
            UserError: none is found.
        """
        if moves := self.legal_moves(game):
            return str(rng.choice(moves))
        read = game.newest[game.turn]
        board, prompt = (read.get(sort, "") for sort in (ObservationType.GAME_BOARD, ObservationType.PROMPT))
        for moves in (_listed(board), _numbers(board + prompt), _listed(prompt)):
            for number in rng.permutation(len(moves)):
                if game.allows(moves[number]):
                    return moves[number]
        raise UserError(f"Nobody can play {self.name} at random: how its moves are written is not known.")

    def demonstrated_move(self, game: TextArenaGame, rng: np.random.Generator) -> str:
        """A move to be imitated."""
        return self.random_move(game, rng)


class RandomPlayer:
    """Says any legal move."""

    def __init__(self, kind: TextArenaKind, game: TextArenaGame, seed: int):
        self._kind, self._game, self._rng = kind, game, np.random.default_rng(seed)

    async def respond(self, observation: str) -> str:
        return self._kind.random_move(self._game, self._rng)

    def recall(self, observation: str, text: str) -> None:
        self._kind.random_move(self._game, self._rng)


def kind(config: Config, variant: str) -> TextArenaKind:
    names = {name.removesuffix("-raw") for name in ENV_REGISTRY if name.endswith("-raw")}
    if not variant:
        raise UserError("textarena needs the name of a game, as in textarena:Nim-v0.")
    if variant not in names:
        found = process.extract(
            variant, sorted(names), scorer=fuzz.ratio, processor=str.lower, limit=3, score_cutoff=50
        )
        near = f"; is it {' or '.join(name for name, *_ in found)} that was meant?" if found else "."
        raise UserError(f"TextArena has no game {variant!r}{near}")
    return TextArenaKind(config, f"textarena:{variant}", variant)


def _listed(text: str) -> list[str]:
    return sorted(set(MOVE.findall(text)))


def _numbers(text: str) -> list[str]:
    largest = max((int(number) for number in re.findall(r"\d+", text)), default=0)
    numbers = range(min(largest + 1, _MOST))
    return [f"[{m}]" for m in numbers] + [f"[{m} {n}]" for m in numbers for n in numbers]


def _line(error: BaseException) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).strip(" *\n").splitlines()), "it does not say why").strip().rstrip(".")
