"""Training against earlier selves, with role baselines."""

import asyncio
import copy
import gc
import weakref
from collections import Counter

import pytest
import torch
from transformers import Qwen3ForCausalLM

from slim_rl.config import Config
from slim_rl.rollout.seating import PolicyRules, Seating
from slim_rl.rollout.shards import read_episodes
from slim_rl.rollout.tasks import Mixture
from slim_rl.training.checkpoint import load_state
from slim_rl.training.config import TrainConfig
from slim_rl.training.grpo import train
from slim_rl.training.pool import Pool
from tests.settings import setting

SMALL = dict(
    steps=3, games_per_step=4, samples_per_game=2, filters=(), learning_rate=1e-3, snapshot_every=1, pool_size=2,
    advantage="role",
)  # fmt: skip
AT = setting("kuhn", ("policy", "pool"))
SELF = setting("kuhn", ("policy", "policy"))


def run(model, folder, at=AT, **changes):
    log = []

    def seating(engines):
        rules = PolicyRules(at.renderer, max_turn_tokens=16, temperature=1.0)
        makers = {name: rules.maker(engine, trained=name == "policy") for name, engine in engines.items()}
        return Seating({"kuhn": at.game}, makers, seed=0)

    config = TrainConfig(**{**SMALL, **changes})
    tasks = Mixture({"kuhn": at.tasks}, {"kuhn": 1.0})
    asyncio.run(train(config, model, None, tasks, seating, 64, folder, log.append))
    return log


def same_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.fixture
def model(taught):
    return copy.deepcopy(taught)


@pytest.fixture(scope="module")
def whole(taught, tmp_path_factory):
    """A run that nothing interrupted: its folder, its log, its model."""
    folder, model = tmp_path_factory.mktemp("whole"), copy.deepcopy(taught)
    return folder, run(model, folder), model


def test_snapshots_are_what_the_policy_was_at_their_steps(whole, model, taught, tmp_path):
    folder, _, trained = whole
    assert sorted(p.name for p in (folder / "snapshots").iterdir()) == [f"step-{n:05d}" for n in range(4)]
    first, second, last = (Qwen3ForCausalLM.from_pretrained(folder / "snapshots" / f"step-{n:05d}") for n in (0, 1, 3))
    assert same_weights(first, taught) and same_weights(last, trained)
    run(model, tmp_path, steps=1)
    assert same_weights(second, model) and not same_weights(second, taught)


def test_there_is_no_pool_unless_it_is_asked_for(model, tmp_path):
    at = setting("kuhn", ("policy", "random"))
    run(model, tmp_path, at, steps=1, snapshot_every=None, pool_size=0)
    assert not (tmp_path / "snapshots").exists()


def test_all_samples_of_a_game_meet_the_same_opponent_and_games_different_ones(whole):
    folder, *_ = whole
    met = {}
    for episode in read_episodes(folder / "rollouts"):
        [(seat, _)] = [(s, name) for s, name in episode.seating.items() if name == "policy"]
        assert list(episode.traces) == [seat]  # nothing of the opponent is trained
        assert any(episode.traces[seat].loss_mask) or not any(t.seat == seat for t in episode.turns)
        number = int(episode.episode_id.split("/")[2])
        [opponent] = set(episode.seating.values()) - {"policy"}
        assert int(opponent.removeprefix("step-")) in range(episode.step - 1, episode.step + 1)
        met.setdefault((episode.step, number), set()).add(opponent)
    assert len(met) == 12 and all(len(opponents) == 1 for opponents in met.values())
    assert any(len({o for (s, _), (o,) in met.items() if s == step}) == 2 for step in (1, 2))


@pytest.mark.parametrize("moment", ["rollout", "shard", "checkpoint"])
def test_a_killed_run_with_a_pool_and_baselines_goes_on_with_the_numbers_it_would_have_had(
    whole, taught, model, tmp_path, killed, moment
):
    _, expected, trained = whole
    with killed(moment):
        run(copy.deepcopy(taught), tmp_path)
    assert run(model, tmp_path) == expected
    assert same_weights(model, trained)


def test_between_checkpoints_too(taught, model, tmp_path, killed):
    """Snapshots of steps that are played again come out the same."""
    options = dict(steps=4, checkpoint_every=2, pool_size=3)
    trained = copy.deepcopy(taught)
    expected = run(trained, tmp_path / "whole", **options)
    with killed("checkpoint"):
        run(copy.deepcopy(taught), tmp_path / "killed", **options)
    assert run(model, tmp_path / "killed", **options) == expected
    assert same_weights(model, trained)


def test_an_average_of_the_weights_is_what_comes_out_also_after_a_kill(taught, model, tmp_path, killed):
    plain, whole = copy.deepcopy(taught), copy.deepcopy(taught)
    run(plain, tmp_path / "plain", steps=2, snapshot_every=None, pool_size=0, at=SELF)
    options = dict(averaging_decay=0.75, snapshot_every=None, pool_size=0, at=SELF)
    first = copy.deepcopy(taught)
    run(first, tmp_path / "first", steps=1, snapshot_every=None, pool_size=0, at=SELF)
    run(whole, tmp_path / "whole", steps=2, **options)
    for start, one, two, mean in zip(*(m.parameters() for m in (taught, first, plain, whole)), strict=True):
        assert torch.allclose(mean, 0.75 * (0.75 * start + 0.25 * one) + 0.25 * two, atol=1e-6)
    with killed("checkpoint"):
        run(model, tmp_path / "killed", steps=2, **options)
    resumed = copy.deepcopy(taught)
    run(resumed, tmp_path / "killed", steps=2, **options)
    assert same_weights(resumed, whole)


def test_baselines_are_in_the_checkpoint(whole):
    folder, log, _ = whole
    baselines = load_state(folder / "state.pt")["run"]["estimator"]
    assert baselines == {role: log[-1][f"advantage/{role}"] for role in ("kuhn/first",)}
    assert all(baselines.values())
    # Written out, from the episodes as they were played.
    expected = dict.fromkeys(baselines, 0.0)
    for episode in sorted(
        read_episodes(folder / "rollouts"), key=lambda e: list(map(int, e.episode_id.split("/")[1:]))
    ):
        for seat, trace in episode.traces.items():
            if any(trace.loss_mask):
                role = f"kuhn/{seat}"
                expected[role] = 0.95 * expected[role] + 0.05 * episode.rewards[seat]
    assert baselines == pytest.approx(expected)


def pool_of(folder, model, snapshots, **options):
    config = TrainConfig(**{**SMALL, "pool_size": 3, **options})
    pool = Pool(config, folder, model, 0)
    for step in range(1, snapshots):
        pool.add(step, model)
    return pool


def test_every_opponent_in_the_pool_is_drawn_as_often(model, tmp_path):
    pool = pool_of(tmp_path, model, 3)
    drawn = [pool.seated(("policy", "pool"), (0, 3, number)) for number in range(1000)]
    assert drawn[:9] == [pool.seated(("policy", "pool"), (0, 3, number)) for number in range(9)]
    assert all(policy == "policy" for policy, _ in drawn)
    shares = [Counter(opponent for _, opponent in drawn)[f"step-{n:05d}"] / 1000 for n in range(3)]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.05)


def test_only_the_pool_is_kept_in_memory(model, tmp_path):
    pool = pool_of(tmp_path, model, 1, pool_size=2)
    oldest = weakref.ref(pool.engines["step-00000"].model)
    for step in range(1, 5):
        pool.add(step, model)
    gc.collect()
    assert list(pool.engines) == ["step-00003", "step-00004"] and oldest() is None
    again = Pool(TrainConfig(**{**SMALL, "pool_size": 2}), tmp_path, model, 4)
    assert list(again.engines) == ["step-00003", "step-00004"]
    assert len(list(tmp_path.iterdir())) == 5  # all are on disk, to be evaluated
    assert Pool(TrainConfig(**{**SMALL, "pool_size": 0}), tmp_path, model, 4).engines == {}


@pytest.mark.parametrize(
    "train", [{}, {"snapshot_every": 1}, {"pool_size": 2}, {"snapshot_every": 1, "pool_size": 2, "backend": "slime"}]
)
def test_a_pool_needs_snapshots(train):
    with pytest.raises(ValueError, match=r"the player pool needs train\.snapshot_every"):
        Config.model_validate({"games": {"kuhn": {"seating": ["policy", "pool"]}}, "train": train})


@pytest.mark.parametrize("train", [{"optimizer": "muon"}, {"averaging_decay": 0.9}])
def test_slime_refuses_what_it_does_not_do(train):
    with pytest.raises(ValueError, match=rf"train\.{next(iter(train))}.* needs train\.backend: local"):
        Config.model_validate({"games": {"matching": {}}, "train": {"backend": "slime", **train}})
