"""slim_rl as a library: the programs of docs/python.md as they stand, and the numbers of the stages."""

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import slim_rl
from slim_rl.core.message import said
from slim_rl.core.player import Player
from slim_rl.engines.engine import EngineFailed
from slim_rl.players.config import ModelConfig
from slim_rl.rollout.shards import read_episodes
from slim_rl.training.checkpoint import save_model
from tests.workspaces import environment

ROOT = Path(__file__).parents[1]
PROGRAMS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.MULTILINE | re.DOTALL)
SMALL = {"train_count": 8, "max_turns": 6}


@pytest.fixture
def policy(engine, tokenizer):
    return slim_rl.Policy(engine, tokenizer, max_turn_tokens=24)


@pytest.mark.slow
def test_the_programs_of_the_guide_run_as_they_stand(finished):
    one_after_another = (
        f"for program in {PROGRAMS!r}:\n    exec(program, {{'__name__': '__main__'}})\n    print('\\0', end='')"
    )
    done = subprocess.run(
        [sys.executable, "-c", one_after_another], cwd=finished, env=environment(), capture_output=True, text=True, timeout=300
    )  # fmt: skip
    assert done.returncode == 0 and all(done.stdout.split("\0")[: len(PROGRAMS)]), done.stderr[-2000:]


def test_a_batch_has_the_episodes_that_the_training_of_the_same_seed_plays(policy, tmp_path):
    batches = slim_rl.Batches("matching", policy, parameters=SMALL, seed=3, batch_size=2, n_samples_per_prompt=4)
    [batch] = [next(iter(batches))]
    policy.engine.reset()
    options = {"steps": 1, "games_per_step": 2, "samples_per_game": 4, "filters": []}
    asyncio.run(slim_rl.train("matching", policy, tmp_path, parameters=SMALL, seed=3, **options))
    [work] = (tmp_path / "work").iterdir()
    trained = {episode.episode_id: episode for episode in read_episodes(work / "rollouts")}
    made = [sample for group in batch for sample in group]
    assert len(made) == len(trained) == 8
    for sample in made:
        episode = trained[sample.metadata["episode_id"]]
        trace = episode.traces["player-1"]
        assert (sample.reward, sample.status) == (episode.rewards["player-1"], episode.status)
        assert (sample.tokens, sample.loss_mask) == (trace.token_ids, trace.loss_mask)
        assert sample.prompt + sample.response == policy.tokenizer.decode(sample.tokens)
    played = slim_rl.episodes(work / "rollouts")
    assert sorted(played["reward.player-1"]) == sorted(sample.reward for sample in made)


@pytest.mark.parametrize(("order", "rests"), [("oldest", [[3, 4, 5], [6]]), ("newest", [[0, 1, 2], [0]])])
def test_what_a_batch_has_no_room_for_waits_in_the_chosen_order(policy, order, rests):
    batches = slim_rl.Batches(
        "matching", policy, parameters=SMALL, batch_size=3, n_samples_per_prompt=1, over_sampling_factor=2.0,
        buffer_order=order, filter_fn=lambda group: True, reward_fn=lambda episode: 0.25,
    )  # fmt: skip

    async def two():
        first, left = await batches.next(), groups(batches.buffer)
        return first, left

    def groups(of):
        return [group[0].group_index for group in of]

    first, left = asyncio.run(two())
    assert groups(first) == sorted(set(range(6)) - set(left)) and left == rests[0]
    assert {group[0].reward for group in first} == {0.25}


def places(episodes, tasks):
    """A reward of a group: each episode's place in it."""
    return list(range(len(episodes)))


def test_a_reward_of_groups_judges_a_batch_by_group_and_a_game_alone(policy):
    parameters = {**SMALL, "reward_function": {"function": f"{__name__}:places", "scope": "group"}}
    batches = slim_rl.Batches("matching", policy, parameters=parameters, batch_size=2, n_samples_per_prompt=3)
    [first, second] = next(iter(batches))
    assert [sample.reward for sample in first] == [sample.reward for sample in second] == [0, 1, 2]
    episode = asyncio.run(slim_rl.play("matching", {"player-1": policy}, parameters=parameters))
    assert episode.rewards["player-1"] == 0


def test_a_filter_that_keeps_nothing_ends_in_a_sentence(policy):
    never = slim_rl.Batches("matching", policy, parameters=SMALL, batch_size=1, filter_fn=lambda group: False)
    with pytest.raises(slim_rl.UserError, match="kept no group"):
        next(iter(never))


def test_batches_can_be_iterated_over_again(policy):
    batches = slim_rl.Batches("matching", policy, parameters=SMALL, batch_size=1, n_samples_per_prompt=2, concurrency=1)
    first, second = (next(iter(batches)) for _ in range(2))
    assert [batch[0][0].group_index for batch in (first, second)] == [0, 1]


def test_where_all_episodes_fail_the_user_reads_why(policy):
    class Down:
        max_context_tokens = 512

        async def generate(self, input_ids, sampling):
            raise EngineFailed("ConnectionRefused: http://localhost:30000")

        def release(self, session):
            pass

    batches = slim_rl.Batches("matching", replace(policy, engine=Down()), parameters=SMALL, batch_size=1)
    with pytest.raises(slim_rl.UserError, match=r"failed.*ConnectionRefused: http://localhost:30000"):
        next(iter(batches))


def test_players_of_ones_own_and_scripted_ones_play(policy):
    class Stubborn(Player):
        async def respond(self, observation, tools=()):
            return said("[propose] nothing")

    episode = asyncio.run(slim_rl.play("matching", {"player-1": Stubborn()}, parameters=SMALL))
    assert episode.status == "truncated" and not episode.traces
    episode = asyncio.run(slim_rl.play("matching", {"player-1": "own-view"}, parameters=SMALL, task=2))
    assert episode.rewards["player-1"] > 0
    twice = [asyncio.run(slim_rl.play("matching", {"player-1": policy}, parameters=SMALL, seed=1)) for _ in range(2)]
    assert twice[0].traces == twice[1].traces


def test_a_training_with_other_options_does_not_go_on_from_an_earlier_one(policy, tmp_path):
    options = {"parameters": SMALL, "games_per_step": 2, "samples_per_game": 2, "steps": 1}
    for rate in (1e-3, 1e-4, 1e-4):  # nothing is learnt, so the third call has the weights of the second and goes on
        asyncio.run(slim_rl.train("matching", policy, tmp_path, learning_rate=rate, **options))
    assert len(list((tmp_path / "work").iterdir())) == 2


def test_a_training_with_another_system_prompt_does_not_go_on_from_an_earlier_one(policy, tmp_path):
    options = {"parameters": SMALL, "games_per_step": 2, "samples_per_game": 2, "steps": 1, "learning_rate": 1e-4}
    for prompt in (None, "Be brief.", "Be brief."):
        prompted = replace(policy, model=ModelConfig(system_prompt=prompt))
        asyncio.run(slim_rl.train("matching", prompted, tmp_path, **options))
    assert len(list((tmp_path / "work").iterdir())) == 2


def test_a_reward_of_ones_own_must_be_a_number(policy):
    batches = slim_rl.Batches(
        "matching", policy, parameters=SMALL, batch_size=1, reward_fn=lambda episode: float("nan")
    )
    with pytest.raises(slim_rl.UserError, match="reward_fn: nan is no finite number"):
        next(iter(batches))


@pytest.mark.parametrize(
    ("arguments", "said_"),
    [
        (("no_such_game",), "no_such_game"),
        (("matching", {"player-9": "scripted"}), "player-9"),
        (("matching",), "player-1"),
        (("matching", {"player-1": "no_such"}), "no_such"),
    ],
)
def test_errors_are_the_sentences_of_the_command_line(arguments, said_):
    with pytest.raises(slim_rl.UserError, match=said_):
        asyncio.run(slim_rl.play(*arguments))


def test_a_task_beyond_a_games_last_is_refused_with_their_number(tmp_path, policy):
    rows = [{"task_id": number, "text": "x", "test_list": ["assert f(1) == 1"]} for number in (11, 12, 13)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parameters = {"file": str(tmp_path / "tasks.jsonl"), "reward": "tests"}
    with pytest.raises(slim_rl.UserError, match="execution has no task 5 to evaluate; it has 3, counted from 0"):
        asyncio.run(slim_rl.play("execution", {"author": policy}, parameters=parameters, task=5))


def test_a_wrong_parameter_is_one_sentence_that_says_what_would_be_right(policy, tmp_path):
    for work, named in (
        (slim_rl.play("matching", parameters={"sizes": 3}), "games.matching.sizes; did you mean size"),
        (slim_rl.train("matching", policy, tmp_path, stepz=3), "train.stepz; did you mean steps"),
        (slim_rl.train("matching", policy, tmp_path, steps=1, temperature=0.5), "takes no temperature"),
    ):
        with pytest.raises(slim_rl.UserError, match=named) as error:
            asyncio.run(work)
        assert "\n" not in str(error.value)


def test_importing_loads_no_torch():
    done = subprocess.run(
        [sys.executable, "-c", "import sys, slim_rl; print('torch' in sys.modules, slim_rl.UserError.__name__)"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.split() == ["False", "UserError"], done.stderr


def test_a_policy_that_is_elsewhere_is_not_trained(tmp_path, untouched_model, tokenizer):
    save_model(tmp_path / "base", untouched_model, tokenizer)
    policy = slim_rl.Policy.sglang("http://localhost:1", tmp_path / "base", 512)
    with pytest.raises(slim_rl.UserError, match="in this process"):
        asyncio.run(slim_rl.train("matching", policy, tmp_path))
