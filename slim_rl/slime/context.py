"""What the hooks of one run share."""

import asyncio
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from slime.rollout import sglang_rollout
from slime.utils.processing_utils import load_tokenizer

from slim_rl.core.episode import Episode
from slim_rl.engines.engine import Engine
from slim_rl.engines.sglang import SGLangEngine
from slim_rl.games import NamedGame, load_games
from slim_rl.players.renderer import Renderer, renderer_of
from slim_rl.players.services import Services, ledgers
from slim_rl.rollout.seating import PlayerMaker, PolicyRules, Seating, checkpoint_makers, service_makers
from slim_rl.slime.folder import PARAMETERS
from slim_rl.slime.parameters import RunParameters


class Context:
    """One for each `args` of SLIME; `Context.of(args)` makes it at its first use and keeps it there.

    `--custom-config-path` adds two attributes to `args`: `slim_rl_folder`, the folder of the run, and `slim_rl_home`,
    the folder of the pipeline.
    """

    def __init__(self, args: Any):
        self._args = args
        folder, home = getattr(args, "slim_rl_folder", None), getattr(args, "slim_rl_home", None)
        self.folder = folder and Path(folder)
        self.parameters = RunParameters.read(self.folder / PARAMETERS) if self.folder else RunParameters()
        if home:
            os.chdir(home)  # paths in the parameters are relative to it; a Ray job starts elsewhere
        self.failures: defaultdict[str, Streak] = defaultdict(Streak)
        """Failed episodes in a row, by game."""
        self.drops = Streak()
        """Dropped groups in a row."""
        self.judged: list[Episode] = []
        """Episodes that the filters saw since the last rollout was logged."""
        self.players: Any = None
        """In the mode `fully_async`, what plays from rollout to rollout."""

    @classmethod
    def of(cls, args: Any) -> "Context":
        context = getattr(args, "slim_rl_context", None)
        if context is None:
            args.slim_rl_context = context = cls(args)
        return context

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as None: SLIME sends `args` to other processes, which make their own."""
        return type(None), ()

    @property
    def aborted(self) -> bool:
        """Whether SLIME has enough samples and interrupts the others."""
        return sglang_rollout.GenerateState(self._args).aborted

    @property
    def tokenizer(self) -> Any:
        return sglang_rollout.GenerateState(self._args).tokenizer

    @cached_property
    def engine(self) -> SGLangEngine:
        """SLIME's router."""
        return self._engine_at(f"http://{self._args.sglang_router_ip}:{self._args.sglang_router_port}", 2**31)

    def _engine_at(self, url: str, context_tokens: int) -> SGLangEngine:
        slime = self.parameters.slime
        return SGLangEngine(url, context_tokens, slime.retry_seconds, slime.request_timeout_seconds)

    def seating(
        self, engine: Engine, sampling_params: Mapping[str, Any], wrap: Callable[[str, PlayerMaker], PlayerMaker]
    ) -> Seating:
        """Plays requests with the policy in `engine`; `wrap` gets the name of each service and what makes its player."""
        temperature = sampling_params.get("temperature", 1.0)
        policy = PolicyRules(self._renderer, self.parameters.model.turn_tokens, temperature).maker(engine)
        services = {name: wrap(name, maker) for name, maker in self._services.items()}
        seed = sampling_params.get("sampling_seed", self.parameters.seed)
        return Seating(self._games, {**self._frozen, **services, "policy": policy}, seed)

    @property
    def plays_again(self) -> bool:
        """Whether a failed episode is worth another try: not in an outage, in which a whole group has failed."""
        failures = max((streak.count for streak in self.failures.values()), default=0)
        return not self.aborted and failures < self.group_size

    @property
    def group_size(self) -> int:
        return getattr(self._args, "n_samples_per_prompt", 8)

    @property
    def rollout_size(self) -> int:
        """Episodes per rollout."""
        return getattr(self._args, "rollout_batch_size", 32) * self.group_size

    @cached_property
    def _renderer(self) -> Renderer:
        return renderer_of(self.parameters.model, self.tokenizer)

    @cached_property
    def _games(self) -> dict[str, NamedGame]:
        return load_games(self.parameters.games, self.parameters.seed)

    @cached_property
    def _services(self) -> dict[str, PlayerMaker]:
        run = f"train/{self.folder.name}" if self.folder else ""
        return service_makers(self._players, Services(self.parameters.services, run, ledgers()))

    @cached_property
    def _frozen(self) -> dict[str, PlayerMaker]:
        """Frozen models, `checkpoint:PATH`. One that SLIME's SGLang serves as well (`--sglang-config`, with PATH as the
        model's name) plays there; others are loaded here, on the CPU."""
        model, temperature = self.parameters.model, self.parameters.train.temperature
        served = getattr(self._args, "sglang_model_routers", None) or {}
        makers = {}
        for name in self._players:
            path = name.removeprefix("checkpoint:")
            if name != path and path in served:
                engine = self._engine_at(sglang_rollout.get_model_url(self._args, path, ""), model.context_tokens)
                renderer = renderer_of(model, load_tokenizer(path, trust_remote_code=False))
                makers[name] = PolicyRules(renderer, model.turn_tokens, temperature).maker(engine, trained=False)
        return makers | checkpoint_makers(self._players - makers.keys(), model, temperature, asyncio.Lock())

    @property
    def _players(self) -> set[str]:
        return {name for game in self.parameters.games.values() for name in game.seating}


class Streak:
    """Counts failures in a row."""

    def __init__(self) -> None:
        self.count = 0
        self._since = 0.0

    def reaches(self, limit: int, good: bool, now: float = 0.0, seconds: float = math.inf) -> bool:
        """Count one more, or start again after something `good`.

        Args:
            now: seconds on any clock.

        Returns:
            Whether there are `limit` of them, or a quarter of that in no less than `seconds`.
        """
        self.count = 0 if good else self.count + 1
        if self.count == 1:
            self._since = now
        lasting = self.count >= limit / 4 and now - self._since >= seconds
        return self.count >= limit or lasting
