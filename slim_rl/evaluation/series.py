"""What an evaluation consists of: series of episodes, each by the same players."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

from slim_rl.core.game import Task
from slim_rl.core.parameters import Section
from slim_rl.engines.engine import Engine
from slim_rl.evaluation.config import EvaluateConfig
from slim_rl.games import NamedGame
from slim_rl.players.config import ModelConfig
from slim_rl.players.renderer import Renderer
from slim_rl.players.services import Services
from slim_rl.rollout.context import check_context
from slim_rl.rollout.seating import Arm, PolicyRules, Request, Seating, checkpoint_makers, service_makers, under


@dataclass(frozen=True)
class Series:
    """Episodes of the same players on many tasks."""

    name: str
    """SERIES/PLAYER: "held-out/trained"."""
    folder: Path
    requests: Callable[[], list[Request]]
    """Needs the episodes of `after`."""
    seating: Callable[[], Awaitable[Seating]]
    """Loads the models that it needs."""
    after: tuple[str, ...] = ()
    """Names of series that are played first."""


def rounds(planned: Mapping[str, Series]) -> list[dict[str, Series]]:
    """The series of one plan or several in rounds: each comes in a later round than those in its `after`.

    Args:
        planned: by name, GAME/SERIES/PLAYER, in the order of their plans.
    """
    number: dict[str, int] = {}
    for name, series in planned.items():
        number[name] = 1 + max((number[before] for before in befores(name, series)), default=-1)
    by_round: list[dict[str, Series]] = [{} for _ in range(1 + max(number.values(), default=-1))]
    for name, series in planned.items():
        by_round[number[name]][name] = series
    return by_round


def befores(name: str, series: Series) -> list[str]:
    """The names of the series in `after`, with the game of `name`, GAME/SERIES/PLAYER."""
    return [f"{name.removesuffix(series.name)}{before}" for before in series.after]


class Models:
    """Loads checkpoints; an async context manager, because `evaluate.server` starts a process for each.

    The server holds one checkpoint at a time: the next one takes its place.

    Args:
        context_limit: of a dialogue on the server, in tokens; None for the checkpoint's own context.
    """

    def __init__(self, evaluate: EvaluateConfig, model: ModelConfig, context_limit: int | None):
        self._evaluate, self._model, self.context_limit = evaluate, model, context_limit
        self._server, self._clients = ExitStack(), AsyncExitStack()
        self._served: tuple[Path, str] | None = None
        self.turn = asyncio.Lock()
        """See `LocalEngine`."""

    async def __aenter__(self) -> "Models":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._clients.aclose()
        self._server.close()

    def load(self, checkpoint: Path) -> tuple[Engine, Renderer]:
        from slim_rl.engines.local import LocalEngine
        from slim_rl.engines.model import checkpoint_config, load_model, load_tokenizer
        from slim_rl.engines.sglang import SGLangEngine
        from slim_rl.players.renderer import renderer_of

        engine: Engine
        if self._evaluate.server is None:
            model, tokenizer = load_model(checkpoint, self._model.computes_in)
            engine = LocalEngine(model, turn=self.turn)
        else:
            tokenizer = load_tokenizer(checkpoint)
            kind = checkpoint_config(str(checkpoint))
            url = self._address(self._evaluate.server, checkpoint)
            context_tokens = self.context_limit or kind.max_position_embeddings
            engine = SGLangEngine(url, context_tokens, vocab_size=kind.vocab_size)
            self._clients.push_async_callback(engine.close)
        return engine, renderer_of(self._model, tokenizer)

    def _address(self, command: str, checkpoint: Path) -> str:
        from slim_rl.engines.sglang import serving

        if self._served is None or self._served[0] != checkpoint:
            self._server.close()
            self._served = checkpoint, self._server.enter_context(serving(command, checkpoint))
        return self._served[1]


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one game: what all its series share."""

    game: NamedGame
    parameters: Section
    """The study's parameters."""
    evaluate: EvaluateConfig
    model: ModelConfig
    seed: int
    folder: Path
    """Gathers the game's episodes: SERIES/PLAYER/*.parquet."""
    services: Services
    models: Models
    tasks: Sequence[Task]
    """The held-out tasks."""
    checkpoints: Mapping[str, Path]
    """`base` and `trained`."""
    snapshots: Mapping[str, Path]
    """`step-00010` and so on, in order; empty unless training kept some."""

    def series(
        self,
        name: str,
        tasks: Sequence[Task] | Callable[[], Sequence[Task]],
        seating: Sequence[str],
        rules: Mapping[str, Arm] | None = None,
        arm: str = "",
        game: NamedGame | None = None,
        samples: int = 1,
        after: tuple[str, ...] = (),
        model: str | None = None,
    ) -> Series:
        """The series `name`, SERIES/PLAYER: `seating` on each of `tasks`.

        Checkpoints and snapshots are seated by their names, services by `service:NAME`, other models by
        `checkpoint:PATH`; anybody else is a player that the game knows.

        Args:
            tasks: a function if they depend on the episodes of `after`.
            rules: what the series changes of a player, by its name in `seating`.
            arm: what the series changes; see `Episode.arm`.
            game: the game with other parameters than the run's.
            samples: episodes of each task; with more than one the episode's id ends in #NUMBER.
            model: the checkpoint that plays under the names in `rules`, where these are others than its own.
        """
        game = game or self.game
        series, players = name.partition("/")[0], tuple(seating)
        endings = [""] if samples == 1 else [f"#{number}" for number in range(samples)]

        def requests() -> list[Request]:
            return [
                Request(f"{name}/{task.game_id}{ending}", game.name, task, players, series=series, arm=arm)
                for task in (tasks() if callable(tasks) else tasks)
                for ending in endings
            ]

        async def seat() -> Seating:
            names = set(seating)
            arms, seated = rules or {}, {}
            for player in names & {*self.checkpoints, *self.snapshots, *arms}:
                checkpoint = {**self.checkpoints, **self.snapshots}[model if model and player in arms else player]
                engine, renderer = self.models.load(checkpoint)
                turn_tokens, limit = self.model.turn_tokens, self.models.context_limit
                await check_context(self.game, self.tasks, renderer, engine.max_context_tokens, turn_tokens, limit)
                policy = PolicyRules(renderer, turn_tokens, self.evaluate.temperature)
                seated[player] = under(arms.get(player), policy.maker(engine))
            seated |= service_makers(names, self.services)
            seated |= checkpoint_makers(names, self.model, self.evaluate.temperature, self.models.turn)
            return Seating({game.name: game}, seated, self.seed)

        return Series(name, self.folder / name, requests, seat, after)

    def seated(self, player: str) -> tuple[str, ...]:
        """The seating of training, with `player` for the policy."""
        return tuple(player if name == "policy" else name for name in self.game.parameters.seating)
