"""The tasks of a game of TextArena, and who can play it without a model."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from rapidfuzz import fuzz, process
from textarena import ObservationType
from textarena.envs.registration import ENV_REGISTRY

from slim_rl.core.errors import UserError
from slim_rl.core.game import ChatRules, Demonstration, Purpose, Task, Taskset, series_seed
from slim_rl.core.player import ScriptedPlayer
from slim_rl.games.textarena.adapter import SEATS, TextArenaGame
from slim_rl.games.textarena.parameters import Parameters

MOVE = re.compile(r"\[[^\[\]\n]+\]")
"""How moves are written in TextArena's games."""
_CELL = re.compile(r"(?<!\S)[^\sa-z\d]\s")  # a single character, as in drawings of boards
_MOST = 16  # numbers to try in moves, if the game lists no moves
_SERIES = 10**9  # more than the tasks of one series

_SYSTEM = """\
You play a game against an opponent, and you want to win. You are told the rules first, then what happens.
Answer with your move only, in square brackets as the rules ask, for example {example}. No explanation."""


class TextArenaTaskset(Taskset):
    """A game of TextArena. Tasksets that know more about their game derive from it.

    Raises:
        UserError: it is not a game for two, or cannot be played on this machine; the sentence says why.
    """

    seats = SEATS
    study = "matches"
    opponents: Sequence[str] = ("random",)
    parameters: Parameters
    game = TextArenaGame
    """The class of its games."""
    example = "[4]"
    """A move, for a chat model's instructions."""

    def __init__(self, parameters: Parameters, seed: int, name: str, environment: str, **options: Any):
        self.name = name
        super().__init__(parameters, seed)
        self._environment, self._options = environment, options
        try:
            game = self.deal(seed=0)
        except AssertionError as error:
            raise UserError(f"TextArena's {environment} is not a game for two: {_line(error)}.") from None
        except Exception as error:  # whatever the environment needs and this machine lacks: a word list, a key
            raise UserError(
                f"TextArena's {environment} cannot be played here: {type(error).__name__}: {_line(error)}."
            ) from None
        self._knows_moves = self.legal_moves(game) is not None
        if parameters.opening_moves and not self._knows_moves:
            raise UserError(f"games.{name}.opening_moves must be 0: the legal moves of this game are not known.")

    def deal(self, seed: int, game_id: str = "") -> TextArenaGame:
        """A new game; everything random in it is drawn from `seed`."""
        limit, illegal = self.parameters.max_turns, self.parameters.illegal_moves
        return self.game(self._environment, seed, limit, illegal, game_id, **self._options)

    @cached_property
    def words(self) -> Sequence[str]:
        """Moves and single characters of boards, from a few random games."""
        texts = [text for seed in range(8) for text in self._random_texts(seed)]
        words = {word for text in texts for word in MOVE.findall(text) + _CELL.findall(text)}
        return sorted(words, key=lambda word: (-len(word), word))

    def _random_texts(self, seed: int) -> Iterator[str]:
        game, rng = self.deal(seed), np.random.default_rng(seed)
        while (seat := game.turn) is not None:
            yield game.read(seat)
            try:
                move = self.random_move(game, rng)
            except UserError:
                return
            yield move
            game.move(move)

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        """A task's state is the `seed` of its game, and in training the number of random `opening_moves`."""
        series = series_seed(self.seed, purpose)
        most = self.parameters.opening_moves if purpose != "evaluate" else 0
        for number in range(count):
            state = {"seed": (seed := series * _SERIES + number)}
            if most:
                state["opening_moves"] = int(np.random.default_rng((seed, 2)).integers(most + 1))
            game_id = f"{self.name.replace(':', '-')}-{series}-{number}"
            yield Task(game_id, self.deal(seed).read("first"), state)

    def check(self, task: Task) -> None:
        for name in ("seed", *({"opening_moves"} & set(task.state))):
            if type(task.state[name]) is not int or task.state[name] < 0:
                raise ValueError(f"its {name} is {task.state[name]!r}, not a whole number from 0 on")
        if task.state.get("opening_moves") and not self._knows_moves:
            raise ValueError("it has opening_moves, but the legal moves of this game are not known")

    def load(self, task: Task) -> TextArenaGame:
        self.check(task)
        return self._opened(task.state["seed"], task.state.get("opening_moves", 0), task.game_id)

    def _opened(self, seed: int, moves: int, game_id: str) -> TextArenaGame:
        """The game after this many random moves, or fewer if they would end it."""
        game, rng = self.deal(seed, game_id), np.random.default_rng((seed, 3))
        for made in range(moves):
            game.move(str(rng.choice(self.legal_moves(game) or [])))
            if game.turn is None:
                return self._opened(seed, made, game_id)
        return game

    def player(self, name: str, game: TextArenaGame, seat: str, seed: int) -> ScriptedPlayer:
        if name == "random":
            return RandomPlayer(self, game, seed)
        raise ValueError(f"{self.name} has no player {name!r}; it has {' and '.join(self.opponents)}")

    def demonstrate(self, task: Task, seat: str) -> Demonstration:
        """Random legal play of both seats; TextArena has no better player for every game."""
        game, rng = self.load(task), np.random.default_rng((task.state["seed"], 1))
        observations, turns = [], []
        while game.turn is not None:
            mine, observation = game.turn == seat, game.read(game.turn)
            move = self.demonstrated_move(game, rng)
            if mine:
                observations.append(observation)
                turns.append(move)
            game.move(move)
        if not turns:  # the other seat's first move ended the game
            return self.demonstrate(replace(task, state={**task.state, "opening_moves": 0}), seat)
        return Demonstration(observations, turns[:-1], [*[None] * (len(turns) - 1), turns[-1]])

    def chat_rules(self, seat: str) -> ChatRules:
        return ChatRules(_SYSTEM.format(example=self.example), self._mend)

    def _mend(self, observation: str, reply: str) -> str:
        if not (moves := MOVE.findall(reply)):
            raise ValueError(f"There is no move in your reply. Write it in square brackets, like {self.example}.")
        return moves[-1]

    def legal_moves(self, game: TextArenaGame) -> list[str] | None:
        """The legal moves of the seat whose turn it is; None if they can only be found by trying."""
        return None

    def random_move(self, game: TextArenaGame, rng: np.random.Generator) -> str:
        """A legal move, drawn uniformly. If the legal moves are not known, this tries the moves in brackets on the
        board; then one or two numbers up to the largest that the seat reads; then the examples in its prompt.

        Raises:
            UserError: no legal move was found.
        """
        if moves := self.legal_moves(game):
            return str(rng.choice(moves))
        assert game.turn is not None
        read = game.newest[game.turn]
        board, prompt = (read.get(sort, "") for sort in (ObservationType.GAME_BOARD, ObservationType.PROMPT))
        for moves in (_listed(board), _numbers(board + prompt), _listed(prompt)):
            for number in rng.permutation(len(moves)):
                if game.allows(moves[number]):
                    return moves[number]
        raise UserError(f"Cannot play {self.name} at random: its move format is unknown.")

    def demonstrated_move(self, game: TextArenaGame, rng: np.random.Generator) -> str:
        """A move to be imitated."""
        return self.random_move(game, rng)


class RandomPlayer(ScriptedPlayer):
    """Plays uniformly random legal moves."""

    def __init__(self, taskset: TextArenaTaskset, game: TextArenaGame, seed: int):
        self._taskset, self._game, self._rng = taskset, game, np.random.default_rng(seed)

    def turn(self, observation: str) -> str:
        return self._taskset.random_move(self._game, self._rng)


def registered(name: str) -> str:
    """`name`, which TextArena must know. Raises UserError if it does not."""
    names = {name.removesuffix("-raw") for name in ENV_REGISTRY if name.endswith("-raw")}
    if not name:
        raise UserError("textarena needs the name of a game, as in textarena:Nim-v0.")
    if name not in names:
        found = process.extract(name, sorted(names), scorer=fuzz.ratio, processor=str.lower, limit=3, score_cutoff=50)
        near = f"; did you mean {' or '.join(near for near, *_ in found)}?" if found else "."
        raise UserError(f"TextArena has no game {name!r}{near}")
    return name


def _listed(text: str) -> list[str]:
    return sorted(set(MOVE.findall(text)))


def _numbers(text: str) -> list[str]:
    largest = max((int(number) for number in re.findall(r"\d+", text)), default=0)
    numbers = range(min(largest + 1, _MOST))
    return [f"[{m}]" for m in numbers] + [f"[{m} {n}]" for m in numbers for n in numbers]


def _line(error: BaseException) -> str:
    """The first line of an error's message."""
    return next(iter(str(error).strip(" *\n").splitlines()), "no reason given").strip().rstrip(".")
