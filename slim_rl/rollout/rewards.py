"""Rewards of the user's own, in place of a game's: `games.NAME.reward_function`.

A reward is a function, `async` or not, of episodes that have ended and their tasks, in the same order, which returns a
number for each, or None for one without a reward:

    def reward(episodes: Sequence[Episode], tasks: Sequence[Task], **arguments) -> Sequence[float | None]

With the scope `episode` it gets one episode at a time, with `group` all those of a task in a training step. It raises
RewardFailed if somebody else is at fault (a judge is not there): the episodes then have failed and are played again;
that is no reward of 0. The ready ones compare the last message of the policy with `label` or `answer` of the task's state.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fractions import Fraction

import aiohttp

from slim_rl.core.episode import Episode
from slim_rl.core.errors import EpisodeFailed, RewardFailed, UserError, finite
from slim_rl.core.game import Task, base_seat
from slim_rl.core.parameters import RewardConfig
from slim_rl.games import NamedGame
from slim_rl.rollout.play import fail
from slim_rl.rollout.store import Store
from slim_rl.runtime.imports import check_name, function_at
from slim_rl.runtime.retry import retry

Values = Sequence[float | None]
Reward = Callable[..., Values | Awaitable[Values]]

JUDGED = "judged"
"""The metric of an episode whose group was judged."""
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]{0,40}(?:\.\d{1,40})?|\.\d{1,40})", re.ASCII)


def response(episode: Episode) -> str:
    """The last message of the policy."""
    seats = set(judged_seats(episode))
    return next((turn.message.text for turn in reversed(episode.turns) if turn.seat in seats), "")


def label(task: Task) -> str:
    """What the task's state has as `label`, or as `answer`."""
    return str(task.state.get("label", task.state.get("answer", "")))


def exact_match(episodes: Sequence[Episode], tasks: Sequence[Task]) -> list[float]:
    """1.0 if the response is the label, apart from space around it."""
    return [float(response(e).strip() == label(t).strip()) for e, t in zip(episodes, tasks, strict=True)]


def number(episodes: Sequence[Episode], tasks: Sequence[Task], tolerance: float = 0.0) -> list[float]:
    """1.0 if the last number in the response is within `tolerance` of the label, a number or a text that ends in
    `#### number`, as GSM8K's do."""
    try:
        return [float(_near(response(e), label(t), tolerance)) for e, t in zip(episodes, tasks, strict=True)]
    except ValueError as error:
        raise UserError(f"A task cannot be judged: {error}.") from None


def number_in(label: str) -> Fraction:
    """The number that a label says. Raises ValueError: it is none."""
    text = label.rpartition("####")[2].strip().removeprefix("$")
    if not _NUMBER.fullmatch(text):
        raise ValueError(
            f"the reward `number` needs a label that is one, or ends in '#### 42'; this is {label[:100]!r}"
        )
    return Fraction(text.replace(",", ""))


def check_label(config: RewardConfig | None, task: Task) -> None:
    """Raises ValueError: the reward cannot compare anything with the label of this task."""
    if config and config.function == number.__name__:
        number_in(label(task))


def boxed(episodes: Sequence[Episode], tasks: Sequence[Task]) -> list[float]:
    r"""1.0 if the last `\boxed{...}` of the response holds the label."""
    return [float(_boxed(response(e)) == label(t).strip()) for e, t in zip(episodes, tasks, strict=True)]


async def remote(
    episodes: Sequence[Episode], tasks: Sequence[Task], url: str, seconds: float = 60.0, tries: int = 4
) -> list[float]:
    """What a server answers, a number: `{prompt, response, label}` is sent to it for each episode, all at once. The same
    HTTP shape as SLIME's `remote_rm`.

    Args:
        seconds: time limit of one try.

    Raises:
        RewardFailed: it does not answer with a number.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds)) as http:

        async def one(episode: Episode, task: Task) -> float:
            asked = episode.turns[0].read if episode.turns else task.prompt
            body = {"prompt": asked, "response": response(episode), "label": label(task)}

            async def ask() -> float:
                async with http.post(url, json=body) as answer:
                    answer.raise_for_status()
                    reward = await answer.json(content_type=None)
                    if isinstance(reward, bool) or not isinstance(reward, int | float):
                        raise ValueError(f"it answered {str(reward)[:100]!r}, which is no number")
                    return finite(reward)

            errors = (aiohttp.ClientError, TimeoutError, ValueError)
            try:
                return await retry(ask, errors, tries=tries, first_seconds=0.1)
            except errors as error:
                raise RewardFailed(f"{type(error).__name__}: {url}: {error}"[:300]) from None

        return list(await asyncio.gather(*map(one, episodes, tasks)))


HUB: dict[str, Reward] = {f.__name__: f for f in (exact_match, number, boxed, remote)}


def find_reward(config: RewardConfig) -> Reward:
    """Raises UserError: there is no such function, or it does not take these arguments."""
    try:
        check_name("the function of a reward", config.function, HUB)
    except ValueError as error:
        raise UserError(f"{error}.") from None
    function = HUB.get(config.function) or function_at(config.function)
    try:
        inspect.signature(function).bind([], [], **config.arguments)
    except TypeError as error:
        raise UserError(f"The reward {config.function} does not take these arguments: {error}.") from None
    return function


async def judge(config: RewardConfig, episodes: Sequence[Episode], tasks: Sequence[Task]) -> None:
    """Give the policy's seats in `episodes` the reward; those that have not ended keep what they have.

    Raises:
        UserError: the function gave something else than a number for each.
    """
    ended = [(e, t) for e, t in zip(episodes, tasks, strict=True) if e.status in ("completed", "truncated")]
    if not ended:
        return
    judged = [episode for episode, _ in ended]
    try:
        returned = find_reward(config)(judged, [task for _, task in ended], **config.arguments)
        values = list(await returned if inspect.isawaitable(returned) else returned)
    except EpisodeFailed as error:
        for episode in judged:
            fail(episode, error)
            episode.rewards = {}
        return
    try:
        values = [None if value is None else finite(value) for value in values]
    except ValueError as error:
        raise UserError(f"The reward {config.function} gave {str(values)[:100]}, but {error}.") from None
    if len(values) != len(judged):
        raise UserError(f"The reward {config.function} gave {str(values)[:100]} for {len(judged)} episodes.")
    for episode, value in zip(judged, values, strict=True):
        own = {} if value is None else dict.fromkeys(judged_seats(episode), value)
        episode.rewards = {**episode.rewards, **own} if own else {}


async def judge_groups(
    games: Mapping[str, NamedGame], tasks: Sequence[Task], episodes: Sequence[Episode], size: int, store: Store
) -> None:
    """Judge the groups of a training step whose game says so, and keep the rewards in `store`. A group is judged again
    if an episode was played again after it."""
    for start in range(0, len(episodes), size):
        group = episodes[start : start + size]
        config = games[group[0].game].parameters.reward_function if group[0].game else None
        judged = all(JUDGED in episode.metrics for episode in group if episode.status != "failed")
        if config is None or config.scope != "group" or judged:
            continue
        await judge(config, group, tasks[start : start + size])
        for episode in group:
            episode.metrics[JUDGED] = 1.0
            store.add(episode)
    store.write()


def judged_seats(episode: Episode) -> list[str]:
    """The policy's, with those that the game added to them; without a policy, all."""
    seats = dict.fromkeys((*episode.seating, *episode.traces, *episode.rewards))
    policys = [seat for seat in seats if episode.seating.get(base_seat(seat)) == "policy"]
    return policys or list(episode.traces or episode.seating or episode.rewards)


def _near(text: str, wanted: str, tolerance: float) -> bool:
    numbers = _NUMBER.findall(text)
    return bool(numbers) and abs(Fraction(numbers[-1].replace(",", "")) - number_in(wanted)) <= Fraction(tolerance)


def _boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, braces inside it matched."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed")
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin + 1 : place].strip()
    return None
