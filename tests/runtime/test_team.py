"""Several processes find what one finds, and none outlives another."""

import asyncio
import os
import signal
import time
from contextlib import chdir
from functools import partial

import psutil
import pytest
import torch
import yaml

from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.engines.model import load_model
from slim_rl.rollout.shards import read_episodes
from slim_rl.runtime import team as team_module
from slim_rl.runtime.team import Team, run_as_team
from stages import base_model, games
from tests.settings import tiny
from tests.workspaces import copy_of, start_stage

pytestmark = [pytest.mark.slow, pytest.mark.pipeline]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with games and a base model, made by one process."""
    folder = tmp_path_factory.mktemp("team") / "made"
    folder.mkdir()
    write(folder, 1)
    with chdir(folder):
        games.main()
        base_model.main()
    return folder


@pytest.fixture(scope="module")
def two(made):
    """A copy in which two processes have trained; and what they said."""
    folder = copy_of(made, made.parent / "two")
    write(folder, 2)
    code, said = ended(start_stage("train", folder), folder)
    assert code == 0, said
    return folder, said


@pytest.mark.parametrize(
    ("changes", "processes"),
    [
        ({}, 4),
        ({"model": {"base": "it.gguf"}}, 1),
        ({"services": {"it": {"model": "gpt-4.1"}}}, 1),
        ({"evaluate": {"server": "serve {model} {port}"}}, 1),
    ],
)
def test_only_a_tiny_model_plays_in_a_process_on_each_core(changes, processes):
    assert Config.model_validate({"cores": 4, "games": {"kuhn": {}}, **changes}).playing_processes == processes


def write(folder, processes):
    train = {"steps": 4, "games_per_step": 3, "samples_per_game": 4, "learning_rate": 0.001}
    train |= {"advantage": "tests.training.estimators:alternating", "checkpoint_minutes": 0}
    warmstart = {"demonstrations": 81}  # the last step has one alone
    parameters = tiny("kuhn", train=train, warmstart=warmstart, cores=processes)
    (folder / "params.yaml").write_text(yaml.safe_dump(parameters))


def ended(process, folder):
    """The exit code of a stage, and what it said."""
    process.join(timeout=300)
    return process.exitcode, (folder / "said.txt").read_text()


def weights(folder):
    return torch.nn.utils.parameters_to_vector(load_model(folder)[0].parameters()).detach()


def distance(one, other, start=None):
    """Distance of two models, as a share of the way that `one` went from `start`, or of its length."""
    begin = weights(start) if start else 0
    return float((weights(one) - weights(other)).norm() / (weights(one) - begin).norm())


def test_a_share_has_its_part_of_the_cost():
    costs = [9, 1, 1, 1, 8, 2, 2, 2]
    shares = [Team(rank, 2).share(costs, float) for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == sorted(costs)
    assert abs(sum(shares[0]) - sum(shares[1])) <= 2
    assert Team().share(costs, float) == costs


def test_two_processes_imitate_play_and_learn_as_one_does(made, two, tmp_path, run_stage, monkeypatch):
    one, (two, said) = copy_of(made, tmp_path / "one"), two
    monkeypatch.chdir(one)
    run_stage("train")
    assert said.count("training:")
    alone, shared = (
        {episode.episode_id: episode for episode in read_episodes(folder / "data/rollouts")} for folder in (one, two)
    )
    assert alone.keys() == shared.keys()
    first = [name for name, episode in alone.items() if episode.step == 0]
    assert [alone[name].turns for name in first] == [shared[name].turns for name in first]
    assert distance(one / "models/trained", two / "models/trained", one / "models/base") < 0.05

    two = copy_of(two, tmp_path / "two")
    assert ended(start_stage("base_model", two), two)[0] == 0
    assert distance(one / "models/base", two / "models/base") < 0.01

    code, said = ended(start_stage("evaluate", two), two)
    assert "trained-against-random: 100%" in said and code == 0
    played = [episode.episode_id for episode in read_episodes(two / "data/episodes")]
    assert len([name for name in played if "trained-against-random" in name]) > 1
    assert len(played) == len(set(played))


def kill(place, folder, saved):
    """Start training in `folder` and kill the process at `place` once this file is there; returns what the first one said."""
    training = start_stage("train", folder)
    while not (list(folder.glob(f".work/train/*/{saved}")) and psutil.Process(training.pid).children()):
        assert training.is_alive()
        time.sleep(0.05)
    [other] = psutil.Process(training.pid).children()
    os.kill((training.pid, other.pid)[place], signal.SIGKILL)
    _, said = ended(training, folder)
    psutil.wait_procs([other], timeout=10)
    assert not other.is_running()
    return said


def test_where_a_process_is_killed_the_other_ends_too_and_the_run_goes_on(made, two, tmp_path):
    folder = copy_of(made, tmp_path / "killed")
    write(folder, 2)
    told = kill(1, folder, "state.pt")
    assert "\nerror: One of the 2 processes died with exit code -9;" in told
    kill(0, folder, "rollouts/step-00001")
    assert ended(start_stage("train", folder), folder)[0] == 0
    assert torch.equal(weights(folder / "models/trained"), weights(two[0] / "models/trained"))


async def _fails(team, error, rank, gathered):
    if team.rank != rank:
        error = None
    if gathered:
        await team.agree(error)
    elif error:
        raise error
    await team.gather("fine")


@pytest.mark.parametrize("gathered", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_fails_in_one_process_is_told_by_the_first(rank, gathered):
    with pytest.raises(UserError, match="the world has ended"):
        run_as_team(partial(_fails, error=UserError("the world has ended"), rank=rank, gathered=gathered), 2)


def test_what_fails_in_another_process_before_all_have_met_is_told_by_the_first(monkeypatch):
    async def meets_late(main, team, folder):
        if team.rank == 0:
            time.sleep(2)
            raise team_module._NotMet("The 2 processes do not reach each other.")
        raise UserError("the world has ended")

    monkeypatch.setattr(team_module, "_meet", meets_late)
    with pytest.raises(UserError, match="the world has ended"):
        run_as_team(partial(_fails, error=None, rank=1, gathered=False), 2)


def test_any_other_error_of_another_process_is_told_with_its_name():
    with pytest.raises(Exception, match="KeyError: 'moon'"):
        run_as_team(partial(_fails, error=KeyError("moon"), rank=1, gathered=True), 2)


async def _waits(team):
    if team.rank:
        time.sleep(20)
        await team.gather("fine")
        return
    interrupt = asyncio.get_running_loop().call_later(0.1, signal.raise_signal, signal.SIGINT)
    await team.gather("fine")
    interrupt.cancel()
    raise AssertionError("the interrupt was not heard")


def test_an_interrupt_is_heard_while_the_first_process_waits_for_another():
    with pytest.raises(KeyboardInterrupt):
        run_as_team(_waits, 2)
