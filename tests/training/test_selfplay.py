"""Self-play with role baselines, snapshots and averaged weights, also after a kill."""

import copy

import pytest
import torch
from transformers import Qwen3ForCausalLM

from slim_rl.rollout.shards import read_episodes
from slim_rl.training.checkpoint import load_state
from slim_rl.training.config import TrainConfig
from tests.training.short import local, same_weights, train

SMALL = dict(
    steps=3, games_per_step=4, samples_per_game=2, filters=(), learning_rate=1e-3, snapshot_every=1, advantage="role",
)  # fmt: skip


def run(model, folder, **changes):
    config = TrainConfig(**{**SMALL, **changes})
    return train(config, local(config, model), folder)


@pytest.fixture
def model(taught):
    return copy.deepcopy(taught)


@pytest.fixture(scope="module")
def whole(taught, tmp_path_factory):
    """A run that nothing interrupted: its folder, its log, its model."""
    folder, model = tmp_path_factory.mktemp("whole"), copy.deepcopy(taught)
    return folder, run(model, folder), model


def test_snapshots_are_what_the_policy_was_at_their_steps(whole, model, taught, tmp_path):
    folder, log, trained = whole
    assert sorted(p.name for p in (folder / "snapshots").iterdir()) == [f"step-{n:05d}" for n in range(4)]
    first, second, last = (Qwen3ForCausalLM.from_pretrained(folder / "snapshots" / f"step-{n:05d}") for n in (0, 1, 3))
    assert same_weights(first, taught) and same_weights(last, trained)
    run(model, tmp_path, steps=1)
    assert same_weights(second, model) and not same_weights(second, taught)
    assert all(metrics["logprob_gap"] < 1e-4 for metrics in log)  # what was sampled is trained on


@pytest.mark.parametrize("moment", ["rollout", "shard", "checkpoint"])
def test_a_killed_run_with_snapshots_and_baselines_goes_on_with_the_numbers_it_would_have_had(
    whole, taught, model, tmp_path, killed, moment
):
    _, expected, trained = whole
    with killed(moment):
        run(copy.deepcopy(taught), tmp_path)
    assert run(model, tmp_path) == expected
    assert same_weights(model, trained)


def test_an_average_of_the_weights_is_what_comes_out_also_after_a_kill(taught, model, tmp_path, killed):
    def trained(name, **changes):
        own = copy.deepcopy(taught)
        run(own, tmp_path / name, **{"steps": 2, "snapshot_every": None, **changes})
        return own

    first, plain = trained("first", steps=1), trained("plain")
    whole = trained("whole", averaging_decay=0.75)
    for start, one, two, mean in zip(*(m.parameters() for m in (taught, first, plain, whole)), strict=True):
        assert torch.allclose(mean, 0.75 * (0.75 * start + 0.25 * one) + 0.25 * two, atol=1e-6)
    with killed("checkpoint"):
        trained("killed", averaging_decay=0.75)
    assert same_weights(trained("killed", averaging_decay=0.75), whole)


def test_baselines_are_in_the_checkpoint(whole):
    folder, log, _ = whole
    baselines = load_state(folder / "state.pt")["run"]["estimator"]
    assert baselines == {role: log[-1][f"advantage/{role}"] for role in ("kuhn/first", "kuhn/second")}
    assert all(baselines.values())
    # Written out, from the episodes as they were played.
    expected = dict.fromkeys(baselines, 0.0)
    played = read_episodes(folder / "rollouts")
    for episode in sorted(played, key=lambda e: list(map(int, e.episode_id.split("/")[1:]))):
        for seat, trace in episode.traces.items():
            if any(trace.loss_mask):
                role = f"kuhn/{seat}"
                expected[role] = 0.95 * expected[role] + 0.05 * episode.rewards[seat]
    assert baselines == pytest.approx(expected)
