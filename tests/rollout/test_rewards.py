"""Rewards of the user's own: the ready ones, a judge over HTTP, and judging a group once."""

import asyncio
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import slim_rl
from slim_rl.core.episode import Episode, Turn
from slim_rl.core.errors import RewardFailed, UserError
from slim_rl.core.game import Task, Taskset
from slim_rl.core.message import heard, said
from slim_rl.core.parameters import GameParameters, RewardConfig
from slim_rl.games import NamedGame
from slim_rl.rollout.rewards import find_reward, judge, judge_groups
from slim_rl.rollout.store import Store
from slim_rl.rollout.summary import describe
from slim_rl.rollout.tasks import TaskFile


class Quiz(Taskset):
    def tasks(self, purpose, count): ...

    def load(self, task): ...


def episode(text, number=0, status="completed"):
    turns = [Turn("solver", heard("What is it?"), said(text))]
    return Episode(f"e{number}", "g", "quiz", {"solver": "policy"}, status=status, turns=turns, rewards={"solver": 9.0})


def judged(text, label, function, **arguments):
    one = episode(text)
    task = Task("g", "", {"label": label})
    asyncio.run(judge(RewardConfig(function=function, arguments=arguments), [one], [task]))
    return one.rewards["solver"]


@pytest.mark.parametrize(
    ("function", "arguments", "text", "label", "reward"),
    [
        ("exact_match", {}, " Paris\n", "Paris", 1),
        ("exact_match", {}, "paris", "Paris", 0),
        ("number", {}, "First 7, so it is 1,234.50.", "1234.5", 1),
        ("number", {}, "It is 1234", "1234.5", 0),
        ("number", {"tolerance": 0.5}, "It is 1234", "1234.5", 1),
        ("number", {}, "no idea", "3", 0),
        ("number", {}, "9" * 100_000, "3", 0),
        ("number", {}, "So it is 42.", "They buy 6 * 7 = 42 eggs.\n#### 42", 1),
        ("number", {}, "43", "They buy 6 * 7 = 42 eggs.\n#### 42", 0),
        ("number", {}, "$1,000", "She pays 10 * 100.\n#### $1,000", 1),
        ("number", {}, "-0.5", "-.5", 1),
        ("boxed", {}, r"So \boxed{1} or rather \boxed{\frac{1}{2}}.", r"\frac{1}{2}", 1),
        ("boxed", {}, r"\boxed{\frac{1}{2}", r"\frac{1}{2}", 0),
        ("boxed", {}, "3", "3", 0),
    ],
)
def test_ready_rewards(function, arguments, text, label, reward):
    assert judged(text, label, function, **arguments) == reward


@pytest.mark.parametrize("label", ["", "forty-two", "42 eggs", "1/2", "#### ", "x = 42", "nan", "1e400", None])
def test_a_label_that_is_no_number_is_refused_when_tasks_are_read(tmp_path, label):
    game = NamedGame("quiz", GameParameters(reward_function=RewardConfig(function="number")), Quiz(None, 0))
    file = tmp_path / "tasks.jsonl"
    lines = [{"game_id": str(n), "game_state": {"label": text}} for n, text in enumerate(("42", label))]
    file.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UserError, match=r"tasks\.jsonl, line 2 is not a task: the reward `number` needs a label"):
        TaskFile(file, game)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (RewardConfig(function="exact"), "name one of exact_match, number, boxed, remote"),
        (RewardConfig(function="number", arguments={"tolerence": 1}), "does not take these arguments: .*tolerence"),
        (RewardConfig(function="remote"), "missing a required argument: 'url'"),
        (RewardConfig(function="no_such_module:reward"), "no module 'no_such_module'"),
    ],
)
def test_a_wrong_name_or_argument_is_told_before_training(config, told):
    with pytest.raises(UserError, match=told):
        find_reward(config)


def test_a_remote_judge_is_asked_again_and_its_failure_is_no_reward_of_0():
    asked = []

    async def handle(request):
        asked.append(await request.json())
        if asked[-1]["response"] == "bad":
            return web.json_response({"score": 1})
        if len(asked) < 3:
            raise web.HTTPBadGateway
        return web.json_response(0.25)

    async def both():
        app = web.Application()
        app.router.add_post("/", handle)
        async with TestServer(app) as server:
            good, bad = episode("7"), episode("bad", 1)
            for one in (good, bad):
                config = RewardConfig(function="remote", arguments={"url": str(server.make_url("/")), "tries": 3})
                await judge(config, [one], [Task("g", "", {"label": "7"})])
            return good, bad

    good, bad = asyncio.run(both())
    assert asked[0] == {"prompt": "What is it?", "response": "7", "label": "7"}
    assert (good.status, good.rewards) == ("completed", {"solver": 0.25})
    assert (bad.status, bad.rewards) == ("failed", {}) and "which is no number" in bad.error


def ranks(episodes, tasks):
    """The longest response earns 1; one that says nothing has no reward."""
    ranks.calls += 1
    longest = max(len(e.turns[0].text) for e in episodes)
    return [None if not e.turns[0].text else float(len(e.turns[0].text) == longest) for e in episodes]


ranks.calls = 0


def breaks(episodes, tasks):
    raise RewardFailed("the judge is asleep")


def wrong(episodes, tasks, value):
    return [value] * len(episodes)


def test_a_group_is_judged_together_and_once(tmp_path):
    config = RewardConfig(function="tests.rollout.test_rewards:ranks", scope="group")
    games = {"quiz": NamedGame("quiz", GameParameters(reward_function=config), None)}
    group = [episode(text, n) for n, text in enumerate(("a", "", "abc"))] + [episode("abcde", 3, "failed")]
    with Store(tmp_path) as store:
        for one in group:
            store.add(one)
    from tests.rollout import test_rewards

    test_rewards.ranks.calls = 0
    asyncio.run(judge_groups(games, [Task("g")] * 4, group, 4, store))
    assert [e.rewards for e in group[:3]] == [{"solver": 0.0}, {}, {"solver": 1.0}]
    again = Store(tmp_path).finished()
    assert {name: e.rewards for name, e in again.items()} == {e.episode_id: e.rewards for e in group[:3]}
    frame = slim_rl.episodes(tmp_path).set_index("episode_id")["reward.solver"].dropna()
    assert frame.to_dict() == {e.episode_id: e.rewards["solver"] for e in group if e.rewards}
    asyncio.run(judge_groups(games, [Task("g")] * 3, list(again.values()), 3, store))
    assert test_rewards.ranks.calls == 1


def test_a_group_with_an_episode_that_was_played_again_is_judged_again(tmp_path):
    """A killed run plays failed episodes again, and the others may have been judged by then."""
    config = RewardConfig(function="tests.rollout.test_rewards:ranks", scope="group")
    games = {"quiz": NamedGame("quiz", GameParameters(reward_function=config), None)}
    group = [episode("a", 0), episode("abc", 1), episode("ab", 2, "failed")]
    with Store(tmp_path) as store:
        asyncio.run(judge_groups(games, [Task("g")] * 3, group, 3, store))
        group[2] = episode("abcde", 2)
        asyncio.run(judge_groups(games, [Task("g")] * 3, group, 3, store))
    assert [e.rewards["solver"] for e in group] == [0.0, 0.0, 1.0]


def test_what_an_agent_says_in_a_sequence_that_it_added_is_its_response():
    """As after it has shortened its history; the episode counts once in the mean."""
    one = episode("I think", 0)
    one.turns.append(Turn("solver#2", heard("Go on."), said("42")))
    one.rewards["solver#2"] = 9.0
    asyncio.run(judge(RewardConfig(function="exact_match"), [one], [Task("g", "", {"label": "42"})]))
    assert one.rewards == {"solver": 1.0, "solver#2": 1.0}
    other = episode("41", 1)
    other.rewards = {"solver": 0.0}
    assert describe([one, other])["reward"] == 0.5


def test_a_judge_that_fails_fails_the_episode_and_nonsense_is_told():
    one = episode("7")
    asyncio.run(judge(RewardConfig(function="tests.rollout.test_rewards:breaks"), [one], [Task("g")]))
    assert (one.status, one.rewards, one.error) == ("failed", {}, "the judge is asleep")
    for value in (float("nan"), float("-inf"), 10**400, "1"):
        config = RewardConfig(function="tests.rollout.test_rewards:wrong", arguments={"value": value})
        with pytest.raises(UserError, match=r"test_rewards:wrong gave \[.*, but .* is no finite number"):
            asyncio.run(judge(config, [episode("7")], [Task("g")]))
