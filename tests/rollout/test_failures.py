"""An environment that breaks often: no run dies, groups stay whole, failures are counted."""

import asyncio
from collections import Counter

import pytest

from slim_rl.games import load_games
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.collect import collect
from slim_rl.rollout.filters import first_objection
from slim_rl.rollout.seating import PolicyRules, Request, Seating
from slim_rl.rollout.shards import count_failures, read_frame
from slim_rl.rollout.store import Store
from slim_rl.rollout.summary import describe
from tests import echo

GROUPS, SAMPLES = 12, 8


def collecting(*arguments, **options):
    return asyncio.run(collect(*arguments, **options))


@pytest.fixture(params=[0.2])
def seating(request):
    """In a game whose tool fails with the probability `request.param`."""
    words = echo.echo_tokenizer()
    games = load_games({"tests.echo": echo.Parameters(failure_rate=request.param)}, seed=0)
    rules = PolicyRules(Renderer(words, thinking=False), max_turn_tokens=100, temperature=1.0)
    return Seating(games, {"policy": rules.maker(echo.EchoEngine(words, looks=2))}, seed=0)


@pytest.fixture
def requests(seating):
    tasks = seating.games["tests.echo"].taskset.tasks("train", GROUPS)
    return [
        Request(f"train/0/{number}/{sample}", "tests.echo", task, ("policy",))
        for number, task in enumerate(tasks)
        for sample in range(SAMPLES)
    ]


@pytest.mark.parametrize("keep", ["whole", "each"])
def test_one_call_in_five_fails(seating, requests, tmp_path, keep):
    episodes = collecting(requests, seating.play, Store(tmp_path, keep), 64, tries=3)
    assert [episode.episode_id for episode in episodes] == [request.episode_id for request in requests]
    groups = [episodes[i : i + SAMPLES] for i in range(0, len(episodes), SAMPLES)]
    assert all(len({episode.game_id for episode in group}) == 1 for group in groups)
    assert all(e.rewards == {"solver": 1.0} and e.traces for e in episodes if e.status == "completed")
    # 36 % of the playings fail: about 35 of the first 96, 12 of the second 35, 4 of the third 12, and so on.
    assert 20 < count_failures(tmp_path) < 100 and not [e for e in episodes if e.status == "failed"]
    assert describe(episodes)["env/tests.echo/episodes"] == len(requests)
    assert Counter(read_frame(tmp_path)["status"]) == Counter(completed=len(requests))


@pytest.mark.parametrize("seating", [1.0], indirect=True)
def test_an_environment_that_is_down_for_good_is_given_up_after_some_rounds(seating, requests, tmp_path):
    episodes = collecting(requests, seating.play, Store(tmp_path), 64, tries=3)
    assert count_failures(tmp_path) == 3 * len(requests)
    assert {(e.status, e.error) for e in episodes} == {("failed", "BadGateway: the tool server is gone")}
    assert first_objection(episodes[:SAMPLES], ["no_failed_episode"]) == "no_failed_episode"
