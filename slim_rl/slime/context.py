"""What the hooks of one run share."""

import os
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from slime.rollout import sglang_rollout

from slim_rl.engines.engine import Engine
from slim_rl.engines.sglang import SGLangEngine
from slim_rl.games import NamedGame, load_games
from slim_rl.players.renderer import Renderer, renderer_for
from slim_rl.players.services import Services, ledgers
from slim_rl.rollout.seating import PlayerMaker, PolicyRules, Seating, checkpoint_makers, service_makers
from slim_rl.slime.parameters import PARAMETERS, RunParameters


class Context:
    """One for each `args` of SLIME; `Context.of(args)` makes it at its first use and keeps it there.

    `launch` adds two attributes to `args`, through `--custom-config-path`: `slim_rl_folder`, where the parameters are
    and the shards go, and `slim_rl_home`, the folder of the pipeline.
    """

    def __init__(self, args: Any):
        self._args = args
        folder, home = getattr(args, "slim_rl_folder", None), getattr(args, "slim_rl_home", None)
        self.folder = folder and Path(folder)
        self.parameters = RunParameters.read(self.folder / PARAMETERS) if self.folder else RunParameters()
        if home:
            os.chdir(home)  # paths in the parameters are relative to it; a Ray job starts elsewhere
        self.failures: defaultdict[str, Streak] = defaultdict(Streak)
        """By game."""
        self.drops = Streak()

    @classmethod
    def of(cls, args: Any) -> "Context":
        context = getattr(args, "slim_rl_context", None)
        if context is None:
            args.slim_rl_context = context = cls(args)
        return context

    def __reduce__(self) -> tuple[Any, ...]:
        """SLIME sends `args` to other processes, for example to an engine that it starts again. It stays here."""
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
        slime, url = (
            self.parameters.slime,
            f"http://{self._args.sglang_router_ip}:{self._args.sglang_router_port}",
        )
        return SGLangEngine(url, 2**31, slime.retry_seconds, slime.request_timeout_seconds)

    def seating(self, engine: Engine, sampling_params: Mapping[str, Any]) -> Seating:
        """Plays requests with the policy in `engine`."""
        temperature = sampling_params.get("temperature", 1.0)
        policy = PolicyRules(self._renderer, self.parameters.model.turn_tokens, temperature).maker(engine)
        seed = sampling_params.get("sampling_seed", self.parameters.seed)
        return Seating(self._games, {**self._others, "policy": policy}, seed)

    @cached_property
    def several_policies(self) -> bool:
        """Whether some game seats the policy more than once, so that an episode fills several samples."""
        return any(game.seating.count("policy") > 1 for game in self.parameters.games.values())

    @cached_property
    def rollout_size(self) -> int:
        """Episodes per rollout."""
        return getattr(self._args, "rollout_batch_size", 32) * getattr(self._args, "n_samples_per_prompt", 8)

    @cached_property
    def _renderer(self) -> Renderer:
        model = self.parameters.model
        return renderer_for(self.tokenizer, model.thinking, model.tool_tokens, model.system_prompt)

    @cached_property
    def _games(self) -> dict[str, NamedGame]:
        return load_games(self.parameters.games, self.parameters.seed)

    @cached_property
    def _others(self) -> dict[str, PlayerMaker]:
        """The players beside the policy that need a model."""
        given = self.parameters
        names = {name for game in given.games.values() for name in game.seating}
        services = Services(given.services, f"train/{self.folder.name}" if self.folder else "", ledgers())
        frozen = checkpoint_makers(names, given.model, given.train.temperature)
        return frozen | service_makers(names, services)


class Streak:
    """Counts failures in a row."""

    def __init__(self) -> None:
        self.count = 0

    def reaches(self, limit: int, good: bool) -> bool:
        """Count one more, or start again after something `good`. Returns whether there are `limit` of them."""
        self.count = 0 if good else self.count + 1
        return self.count >= limit
