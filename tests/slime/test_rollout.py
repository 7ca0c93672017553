"""SLIME's own rollout, from our games file to its training batch, without a GPU."""

import copy
import itertools
from types import SimpleNamespace

import pytest
import torch
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils.http_utils import init_http_client
from slime.utils.misc import load_function
from slime.utils.types import Sample

from slim_rl.engines.model import load_model
from slim_rl.players.policy import TokenTrace
from slim_rl.rollout.store import read_episodes
from slim_rl.training.grpo import TrainedSequence, sequences, update


@pytest.fixture(scope="module")
def rollout(make_args, servers, tmp_path_factory):
    """64 games, 4 samples each, as SLIME's rollout manager has them played, logged and evaluated."""
    folder = tmp_path_factory.mktemp("slime")
    config, args = make_args(folder, *servers)
    init_http_client(args)
    source = RolloutDataSourceWithBuffer(args)
    train = generate_rollout(args, 0, source)
    evaluation = generate_rollout(args, 0, source, evaluation=True)
    args.use_wandb = args.use_tensorboard = False
    samples = list(itertools.chain.from_iterable(train.samples))
    load_function(args.custom_rollout_log_function_path)(0, args, samples, train.metrics, 1.0)
    load_function(args.custom_eval_rollout_log_function_path)(0, args, evaluation.data, None)
    return SimpleNamespace(config=config, args=args, folder=folder, train=train, evaluation=evaluation.data)


def test_the_rollout_is_full_and_every_group_can_be_learnt_from(rollout):
    assert len(rollout.train.samples) == 64
    for group in rollout.train.samples:
        assert len(group) == 4 and len({sample.label for sample in group}) == 1
        assert len({sample.reward for sample in group}) > 1
        for sample in group:
            assert sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED)
            assert sample.reward == sample.metadata["episode"].rewards["player-1"]
            assert sample.metadata["facts"]["player-1.questions"] >= 0
    assert sum(s.metadata["facts"]["player-1.questions"] for g in rollout.train.samples for s in g) > 64


def test_what_slime_trains_on_is_what_was_played(rollout):
    for sample in itertools.chain.from_iterable(rollout.train.samples):
        trace = sample.metadata["episode"].traces["player-1"]
        prompt = len(sample.tokens) - sample.response_length
        assert sample.tokens == trace.token_ids
        assert [0] * prompt + sample.loss_mask == trace.loss_mask
        assert [0.0] * prompt + sample.rollout_log_probs == trace.logprobs
        assert sample.loss_mask[0] == 1  # the response begins with what the policy said


def test_evaluation_plays_every_held_out_game_once(rollout):
    played = rollout.evaluation["held_out"]
    assert len({sample.label for sample in played["samples"]}) == len(played["samples"]) == 64
    shard = list(read_episodes(rollout.folder / "evaluations/held_out"))
    assert [e.rewards["player-1"] for e in shard] == played["rewards"]


def test_a_training_step_from_it_is_the_local_backends(rollout, workspace):
    """SLIME's conversion and our reward post-process give the advantages and the loss of `training/grpo.py`."""
    from slime.ray.rollout import RolloutManager

    manager = object.__new__(RolloutManager.__ray_metadata__.modified_class)
    manager.args = rollout.args
    manager.custom_convert_samples_to_train_data_func = None
    manager.custom_reward_post_process_func = load_function(rollout.args.custom_reward_post_process_path)
    samples = list(itertools.chain.from_iterable(rollout.train.samples))
    data = manager._convert_samples_to_train_data(samples)
    theirs = [
        TrainedSequence(
            TokenTrace(ids, [0] * (len(ids) - n) + mask, [0.0] * (len(ids) - n) + logprobs), value, i
        )
        for i, (ids, n, mask, logprobs, value) in enumerate(
            zip(
                data["tokens"],
                data["response_lengths"],
                data["loss_masks"],
                data["rollout_log_probs"],
                data["rewards"],
                strict=True,
            )
        )
    ]
    episodes = sorted(read_episodes(rollout.folder / "rollouts"), key=lambda e: e.game_id)
    groups = [list(g) for _, g in itertools.groupby(episodes, key=lambda e: e.game_id)]
    ours = sequences(rollout.config.train, groups, {})

    def by_tokens(sequences):
        return sorted((s.trace.token_ids, round(s.advantage, 4), s.advantage) for s in sequences)

    assert [(t, pytest.approx(a, abs=1e-5)) for t, _, a in by_tokens(ours)] == [
        (t, a) for t, _, a in by_tokens(theirs)
    ]

    model, _ = load_model(workspace / "models/base")

    def step(sequences):
        trained = copy.deepcopy(model)
        optimizer = torch.optim.SGD(trained.parameters(), lr=1e-3)
        return update(rollout.config.train, trained, None, [optimizer], sequences)

    local, slime = step(ours), step(theirs)
    assert slime["loss"] == pytest.approx(local["loss"], abs=1e-5)
    assert slime["grad_norm"] == pytest.approx(local["grad_norm"], rel=1e-4)
    assert slime["logprob_gap"] < 1e-4


def test_a_rollout_of_the_same_seed_is_the_same(rollout, make_args, servers, tmp_path):
    _, args = make_args(tmp_path, *servers, train={"games_per_step": 8, "filters": ["no_failed_episode"]})
    init_http_client(args)
    groups = generate_rollout(args, 0, RolloutDataSourceWithBuffer(args)).samples
    first = {(s.label, s.index): s.tokens for g in rollout.train.samples for s in g}
    shared = [(first[s.label, s.index], s.tokens) for g in groups for s in g if (s.label, s.index) in first]
    assert shared and all(a == b for a, b in shared)
