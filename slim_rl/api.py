"""slim_rl as a library: play a game, make training samples, train, read what a run has left. See docs/python.md."""

import asyncio
import copy
import hashlib
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slim_rl.config import Config, checked
from slim_rl.core.episode import Episode, Status
from slim_rl.core.errors import UserError, finite
from slim_rl.core.game import Purpose, Task
from slim_rl.core.player import Player
from slim_rl.engines.engine import Engine
from slim_rl.games import NamedGame, load_games
from slim_rl.players.config import ModelConfig
from slim_rl.players.renderer import renderer_of
from slim_rl.rollout.filters import find_filter
from slim_rl.rollout.rewards import judge
from slim_rl.rollout.seating import PlayerMaker, PolicyRules, Request, Seating
from slim_rl.rollout.shards import row_of
from slim_rl.runtime.code import fingerprint

if TYPE_CHECKING:
    import pandas as pd

MAX_ROUNDS = 10
"""`Batches` ends after this many rounds in a row without a group that the filter keeps."""

__all__ = ["Batches", "Episode", "Policy", "Sample", "Task", "UserError", "episodes", "play", "samples", "train"]


@dataclass(frozen=True)
class Policy:
    """A model that plays and whose tokens are recorded.

    Args:
        temperature: log-probs are those at this temperature.
        max_turn_tokens: limit of a turn.
    """

    engine: Engine
    tokenizer: Any
    temperature: float = 1.0
    max_turn_tokens: int = 512
    model: ModelConfig = field(default_factory=ModelConfig)

    @classmethod
    def load(cls, checkpoint: str | Path, precision: str = "fp32", **options: Any) -> "Policy":
        """A checkpoint in this process, which computes in `precision`, as `model.precision`.

        Raises:
            UserError: there is none, or it is of a kind that is not supported.
        """
        from slim_rl.engines.local import LocalEngine
        from slim_rl.engines.model import load_model

        model, tokenizer = load_model(checkpoint, precision)
        return cls(LocalEngine(model), tokenizer, **options)

    @classmethod
    def sglang(cls, url: str, checkpoint: str | Path, max_context_tokens: int, **options: Any) -> "Policy":
        """A checkpoint that an SGLang server at `url` serves; only its tokenizer is read here. Raises UserError."""
        from slim_rl.engines.model import checkpoint_folder, load_tokenizer
        from slim_rl.engines.sglang import SGLangEngine

        tokenizer = load_tokenizer(checkpoint_folder(str(checkpoint)))
        return cls(SGLangEngine(url, max_context_tokens), tokenizer, **options)

    def maker(self) -> PlayerMaker:
        """Seats it."""
        rules = PolicyRules(renderer_of(self.model, self.tokenizer), self.max_turn_tokens, self.temperature)
        return rules.maker(self.engine)


Seated = str | Policy | Player
"""Who sits in a seat: a player that the game knows, by name; a model; or a player of one's own, for one episode."""


@dataclass
class Sample:
    """One sequence to be trained on."""

    prompt: str
    """What the policy read before it first spoke."""
    response: str
    """All that follows, what it read later included."""
    tokens: list[int]
    loss_mask: list[int]
    """1 exactly on what was sampled; as long as `tokens`."""
    logprobs: list[float]
    """Natural log, at the sampling temperature; 0 where nothing was sampled. As long as `tokens`."""
    reward: float | None
    """None for an episode that failed or gave no reward."""
    status: Status
    group_index: int = 0
    """Samples of the same group played the same task."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """`episode_id`, `game_id`, `game`, `seat`, and the episode's `metrics`."""


async def play(
    game: str,
    seats: Mapping[str, Seated] | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    task: int | Task = 0,
    purpose: Purpose = "evaluate",
) -> Episode:
    """Play one game.

    Args:
        game: its name or import path, as in `params.yaml`.
        seats: who plays, by seat; the players that the game knows take the others, as its `seating` says.
        parameters: of the game.
        task: the task, or the number of one of those that the game makes for `purpose`.

    Raises:
        UserError: there is no such game, seat, player or task.
    """
    named = _load(game, parameters, seed)
    if isinstance(task, int):
        tasks = _tasks(named, purpose, task + 1)
        if task >= len(tasks):
            raise UserError(f"The game {game} has no task {task} to {purpose}; it has {len(tasks)}, counted from 0.")
        task = tasks[task]
    seating, names = _seating(named, seats or {}, seed)
    # Like an episode of an evaluation's series, it is judged alone.
    return await seating.play(Request(f"play/{task.game_id}", game, task, names, series="play"))


def samples(episode: Episode, tokenizer: Any, group_index: int = 0) -> list[Sample]:
    """What an episode gives to train on: a sample for each sequence in which the policy spoke."""
    made = []
    for seat, trace in episode.traces.items():
        if 1 in trace.loss_mask:
            first = trace.loss_mask.index(1)
            prompt, response = (
                tokenizer.decode(ids, skip_special_tokens=False)
                for ids in (trace.token_ids[:first], trace.token_ids[first:])
            )
            names = {"episode_id": episode.episode_id, "game_id": episode.game_id, "game": episode.game, "seat": seat}
            made.append(
                Sample(
                    prompt, response, trace.token_ids, trace.loss_mask, trace.logprobs, episode.rewards.get(seat),
                    episode.status, group_index, {**names, "metrics": episode.metrics},
                )
            )  # fmt: skip
    return made


class Batches:
    """Batches of groups of samples, without end: `async for batch in batches`, or `for batch in batches` outside of an
    event loop.

    A batch is a list of `batch_size` groups; a group is a list of samples of one task. Groups that the filter keeps and the
    batch has no room for stay in `buffer` for the next one. The policy's weights may change between two batches; then
    call `policy.engine.reset()`, and clear `buffer` if nothing older is to be trained on.

    Args:
        game, seats, parameters, seed: as in `play`; `policy` takes the seats that `seats` leaves to it.
        batch_size: groups in a batch.
        n_samples_per_prompt: episodes in a group.
        over_sampling_factor: so many times as many groups are played as are missing.
        filter_fn: a filter's name (see `slim_rl/rollout/filters.py`) or a function of a group's episodes.
        reward_fn: (episode) -> the reward in place of the game's; it may be a coroutine.
        generate_fn: (task, episode's id) -> an episode, in place of playing the game; a coroutine.
        buffer_order: which of the groups that are left over come first.
        concurrency: episodes under way at a time.

    Raises:
        UserError: see `play`; or `MAX_ROUNDS` rounds in a row had no group that the filter kept, or only failed episodes.
    """

    def __init__(
        self,
        game: str,
        policy: Policy,
        *,
        seats: Mapping[str, Seated] | None = None,
        parameters: Mapping[str, Any] | None = None,
        seed: int = 0,
        batch_size: int = 8,
        n_samples_per_prompt: int = 8,
        over_sampling_factor: float = 1.0,
        filter_fn: str | Callable[[Sequence[Episode]], bool] | None = None,
        reward_fn: Callable[[Episode], float | Awaitable[float]] | None = None,
        generate_fn: Callable[[Task, str], Awaitable[Episode]] | None = None,
        buffer_order: Literal["oldest", "newest"] = "oldest",
        concurrency: int = 256,
    ):
        named = _load(game, parameters, seed)
        own = {seat: policy for seat, who in _default_seats(named).items() if who == "policy"}
        self._seating, self._names = _seating(named, {**own, **(seats or {})}, seed)
        self._tasks = _tasks(named, "train", named.parameters.train_count)
        self._judge = named.parameters.reward_function
        self._keeps = find_filter(filter_fn) if isinstance(filter_fn, str) else filter_fn
        self._policy, self._game, self._reward, self._generate = policy, game, reward_fn, generate_fn
        self._size, self._samples, self._factor = batch_size, n_samples_per_prompt, over_sampling_factor
        self._order, self._concurrency = buffer_order, concurrency
        self._numbers = count()
        self.step = 0
        """Batches made so far."""
        self.buffer: list[list[Sample]] = []
        """Groups that are left over, the oldest first."""

    async def __aiter__(self) -> AsyncIterator[list[list[Sample]]]:
        while True:
            yield await self.next()

    def __iter__(self) -> Iterator[list[list[Sample]]]:
        with asyncio.Runner() as runner:
            while True:
                yield runner.run(self.next())

    async def next(self) -> list[list[Sample]]:
        """The next batch."""
        idle = 0
        self._free = asyncio.Semaphore(self._concurrency)  # it belongs to the event loop of this call
        while (missing := self._size - len(self.buffer)) > 0:
            numbers = [next(self._numbers) for _ in range(math.ceil(missing * self._factor))]
            played = await asyncio.gather(*map(self._group, numbers))
            kept = [group for group in map(self._kept, numbers, played) if group]
            self.buffer += kept
            idle = 0 if kept else idle + 1
            if idle == MAX_ROUNDS:
                episodes = [episode for group in played for episode in group]
                if all(episode.status == "failed" for episode in episodes):
                    raise UserError(f"All episodes of {self._game} in the last round failed: {episodes[-1].error}")
                raise UserError(f"The filter kept no group of {MAX_ROUNDS} rounds of {self._game}.")
        self.step += 1
        cut = self._size if self._order == "oldest" else len(self.buffer) - self._size
        first, last = self.buffer[:cut], self.buffer[cut:]
        batch, self.buffer = (first, last) if self._order == "oldest" else (last, first)
        return batch

    async def _group(self, number: int) -> list[Episode]:
        task = self._tasks[number % len(self._tasks)]
        ids = [f"train/{self.step}/{number}/{sample}" for sample in range(self._samples)]
        played = await asyncio.gather(*(self._episode(task, episode_id) for episode_id in ids))
        if self._judge and self._judge.scope == "group" and not (self._reward or self._generate):
            await judge(self._judge, played, [task] * len(played))
        return played

    def _kept(self, number: int, played: Sequence[Episode]) -> list[Sample]:
        """The samples of a group; none if the filter drops it."""
        if self._keeps and not self._keeps(played):
            return []
        return [sample for episode in played for sample in samples(episode, self._policy.tokenizer, number)]

    async def _episode(self, task: Task, episode_id: str) -> Episode:
        async with self._free:
            if self._generate:
                episode = await self._generate(task, episode_id)
            else:
                episode = await self._seating.play(Request(episode_id, self._game, task, self._names, self.step))
            if self._reward and episode.status != "failed":
                reward = self._reward(episode)
                reward = await reward if inspect.isawaitable(reward) else reward
                try:
                    episode.rewards = dict.fromkeys(episode.traces or episode.rewards, finite(reward))
                except ValueError as error:
                    raise UserError(f"reward_fn: {error}, for the episode {episode_id}.") from None
            return episode


async def train(
    game: str,
    policy: Policy,
    folder: str | Path,
    *,
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    on_step: Callable[[Mapping[str, float]], None] = lambda metrics: None,
    **options: Any,
) -> list[dict[str, float]]:
    """Train a local policy in place on one game, as the stage `train` does, and write it to `folder/trained`. A call that was
    interrupted goes on when it is made again with the same arguments and weights.

    Args:
        options: those of `train` in `params.yaml`, `steps`, `learning_rate` and so on, but not `backend` or `temperature`.

    Returns:
        The metrics of each step.

    Raises:
        UserError: see `play`; or the policy is not in this process.
    """
    import torch

    from slim_rl.engines.local import LocalEngine
    from slim_rl.rollout.tasks import Mixture
    from slim_rl.training.backend import LocalBackend
    from slim_rl.training.grpo import Rollouts, Trainer
    from slim_rl.training.weights import Weights

    if not isinstance(policy.engine, LocalEngine):
        raise UserError("Only a policy in this process can be trained: Policy.load(CHECKPOINT).")
    if fixed := sorted(options.keys() & {"backend", "temperature"}):
        raise UserError(f"slim_rl.train takes no {fixed[0]}: it trains in this process, at the policy's temperature.")
    config = _checked(game, parameters, seed, train={**options, "temperature": policy.temperature})
    model = policy.engine.model
    digest = hashlib.sha256()
    for weight in model.state_dict().values():
        digest.update(weight.cpu().contiguous().view(torch.uint8).numpy())
    if config.train.lora:  # the adapters are merged into the policy's model at the end
        model = copy.deepcopy(model)
    weights = Weights(model, model.dtype, config.train.lora, bool(config.train.kl_coefficient), seed)
    engine = policy.engine if weights.sampler is policy.engine.model else LocalEngine(weights.sampler)
    named = load_games(config.games, seed)[game]
    sampled = replace(policy, engine=engine)
    own = {seat: sampled for seat, who in _default_seats(named).items() if who == "policy"}
    seating, _ = _seating(named, own, seed)
    tasks = {game: _tasks(named, "train", named.parameters.train_count)}
    rules = (policy.max_turn_tokens, policy.model.model_dump(mode="json"))
    work = Path(folder, "work", fingerprint(config.model_dump(mode="json"), *rules, digest.hexdigest()))
    backend = LocalBackend(config.train, weights, engine)
    trainer = Trainer(config.train, backend, Rollouts(Mixture(tasks, {game: 1.0}), seating, 256), work)
    try:
        await trainer.train(on_step)
    finally:
        weights.close()
    if engine is not policy.engine:
        policy.engine.model.load_state_dict(weights.sampler.state_dict())
        policy.engine.reset()
    await backend.export(Path(folder, "trained"), policy.tokenizer)
    return trainer.run.history


def episodes(folder: str | Path) -> "pd.DataFrame":
    """What a run has played, a row an episode: `data/rollouts`, `data/episodes`, or a folder in them. Of several attempts at
    an episode the last that did not fail counts.

    The columns are those of `Episode`, with `reward.SEAT` and the game's metrics beside them.

    Raises:
        UserError: a file is no shard, or there is none.
    """
    import pandas as pd

    from slim_rl.rollout.shards import read_last_attempts

    rows = []
    for episode in read_last_attempts(Path(folder)):
        row = row_of(episode)
        for name in ("traces", "rewards", "metrics", "seating"):
            del row[name]
        rewards = {f"reward.{seat}": reward for seat, reward in episode.rewards.items()}
        rows.append({**row, "seating": dict(episode.seating), **rewards, **episode.metrics})
    if not rows:
        raise UserError(f"There are no episodes in {folder}.")
    return pd.DataFrame(rows)


def _checked(game: str, parameters: Mapping[str, Any] | None, seed: int, **sections: Any) -> Config:
    return checked({"seed": seed, "games": {game: dict(parameters or {})}, **sections}, "slim_rl")


def _load(game: str, parameters: Mapping[str, Any] | None, seed: int) -> NamedGame:
    return load_games(_checked(game, parameters, seed).games, seed)[game]


def _default_seats(game: NamedGame) -> dict[str, str]:
    return dict(zip(game.taskset.seats, game.parameters.seating, strict=True))


def _tasks(game: NamedGame, purpose: Purpose, number: int) -> list[Task]:
    tasks = list(game.taskset.tasks(purpose, number))
    if not tasks:
        raise UserError(f"The game {game.name} has no tasks to {purpose}.")
    return tasks


def _seating(game: NamedGame, seats: Mapping[str, Seated], seed: int) -> tuple[Seating, tuple[str, ...]]:
    """The seating of a game, and the names of its players."""
    names, makers = _default_seats(game), {}
    for seat, who in seats.items():
        if seat not in names:
            raise UserError(f"The game {game.name} has no seat {seat!r}; it has {', '.join(names)}.")
        if isinstance(who, str):
            names[seat] = who
            continue
        first = not any(isinstance(other, Policy) and other is not who for other in seats.values())
        names[seat] = "policy" if isinstance(who, Policy) and first else f"own/{seat}"
        makers[names[seat]] = who.maker() if isinstance(who, Policy) else _only(who)
    if "policy" in names.values() and "policy" not in makers:
        free = ", ".join(seat for seat, who in names.items() if who == "policy")
        raise UserError(f"Nobody sits in the seat {free} of the game {game.name}; name a policy or a player in seats.")
    return Seating({game.name: game}, makers, seed), tuple(names.values())


def _only(player: Player) -> PlayerMaker:
    return lambda seat: player
