"""What SLIME gets from the hooks, whatever a model, an engine or a partner come up with."""

import asyncio
import importlib.util
import itertools
import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slime.observability.rollout_data_utils import validate_rollout_id_annotated
from slime.ray.rollout import RolloutManager
from slime.rollout import sglang_rollout
from slime.utils.types import Sample

from slim_rl.config import Config, TrainConfig
from slim_rl.engines.engine import EngineFailed
from slim_rl.errors import UserError
from slim_rl.games.kuhn import KuhnKind
from slim_rl.journal import read_lines
from slim_rl.slime import hooks
from slim_rl.training.grpo import sequences
from slim_rl.training.loss import token_weights
from tests.babbler import Babbler
from tests.settings import setting


class SGLangShaped:
    """`Babbler` in SGLang's words; now and then it fails or is aborted in the middle."""

    def __init__(self, tokenizer, seed, failing=0.0, aborting=0.0):
        self.babbler, self.rng = Babbler(tokenizer, seed), np.random.default_rng(seed)
        self.failing, self.aborting = failing, aborting
        self.asked, self.params = [], []
        self.state, self.asked_to_abort = SimpleNamespace(), True

    async def request(self, input_ids, sampling, sampling_params=None, given_up=lambda: False):
        if self.rng.random() < self.failing:
            raise EngineFailed("gone")
        said = await self.babbler.generate(input_ids, sampling)
        ids, logprobs, reason = said.token_ids, said.logprobs, {"type": "stop"}
        if self.rng.random() < self.aborting:
            cut = int(self.rng.integers(len(ids)))
            ids, logprobs, reason = ids[:cut], logprobs[:cut], {"type": "abort"}
            self.state.aborted = self.asked_to_abort
        self.asked.append((list(input_ids), ids, logprobs))
        self.params.append((sampling, sampling_params))
        tokens = [[p, t, None] for p, t in zip(logprobs, ids, strict=True)]
        return {"text": "…", "meta_info": {"finish_reason": reason, "output_token_logprobs": tokens}}


@contextmanager
def slime(tokenizer, engine, **changes):
    """SLIME with `engine` behind its router, and our parameters with `changes`; gives its arguments."""
    config = Config.model_validate({"model": {"turn_tokens": 16}, **changes})
    state = engine.state = SimpleNamespace(tokenizer=tokenizer, aborted=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hooks, "_engine", lambda args: engine)
        patch.setattr(hooks, "_config", lambda path: config)
        patch.setattr(sglang_rollout, "GenerateState", lambda args: state)
        yield SimpleNamespace(rollout_max_context_len=400, state=state)


def sample_of(game, index=0):
    return Sample(
        group_index=0,
        index=index,
        prompt=game["prompt"],
        label=game["game_id"],
        metadata={**game["game_state"]},
    )


def play(args, sample, evaluation=False, **params):
    params = {"max_new_tokens": 16, "temperature": 1.0, **params}
    return asyncio.run(hooks.generate(args, sample, params, evaluation=evaluation))


@settings(max_examples=1000, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), thinking=st.booleans())
def test_what_goes_to_the_engine_is_what_is_trained_on(tokenizer, games, seed, thinking):
    engine = SGLangShaped(tokenizer, seed, failing=0.05, aborting=0.2)
    model = {"turn_tokens": 16, "thinking": thinking}
    with slime(tokenizer, engine, model=model) as args:
        sample = play(args, sample_of(games[seed % len(games)]))
        while sample.status == Sample.Status.ABORTED:
            args.state.aborted = False
            sample = play(args, sample)
    prompt = len(sample.tokens) - sample.response_length
    trained, logprobs = [0] * len(sample.tokens), [0.0] * len(sample.tokens)
    for asked, ids, probabilities in engine.asked:
        end = len(asked) + len(ids)
        assert sample.tokens[: len(asked)] == asked
        assert sample.tokens[len(asked) : end] == ids
        trained[len(asked) : end] = [1] * len(ids)
        logprobs[len(asked) : end] = probabilities
    assert trained[:prompt] == [0] * prompt
    assert (sample.loss_mask or []) == trained[prompt:]
    assert (sample.rollout_log_probs or []) == logprobs[prompt:]
    assert len(sample.tokens) <= 400
    assert sample.remove_sample == (sample.status == Sample.Status.FAILED) and sample.reward is not None


def test_slimes_limits_and_seed_reach_the_engine(tokenizer, games):
    with slime(tokenizer, SGLangShaped(tokenizer, 1)) as args:
        engine = hooks._engine(args)
        args.rollout_max_context_len, args.eval_max_context_len = 200, 120
        one = play(args, sample_of(games[0]), sampling_seed=7, top_p=0.9, max_new_tokens=5)
        assert all(params["top_p"] == 0.9 for _, params in engine.params)
        assert all(sampling.max_new_tokens <= 5 for sampling, _ in engine.params)
        seeds = [sampling.seed for sampling, _ in engine.params]
        engine.params.clear()
        play(args, sample_of(games[0]), sampling_seed=8)
        assert len(set(seeds)) == len(seeds) and seeds[0] != engine.params[0][0].seed
        evaluated = play(args, sample_of(games[0]), evaluation=True)
    assert len(one.tokens) <= 200 and len(evaluated.tokens) <= 120


def test_nothing_is_sent_once_slime_has_aborted(tokenizer, games):
    engine = SGLangShaped(tokenizer, 1)
    with slime(tokenizer, engine) as args:
        args.state.aborted = True
        sample = play(args, sample_of(games[0]))
        assert (sample.status, sample.reward, engine.asked) == (Sample.Status.ABORTED, None, [])
        args.state.aborted = False
        assert play(args, sample).status != Sample.Status.ABORTED


def test_what_was_sampled_by_older_weights_can_be_masked(tokenizer, games):
    """`--mask-offpolicy-in-partial-rollout`: SLIME zeroes the mask before it goes on."""
    engine = SGLangShaped(tokenizer, 3, aborting=1.0)
    with slime(tokenizer, engine) as args:
        sample = play(args, sample_of(games[0]))
        while not sample.response_length:
            args.state.aborted = False
            sample = play(args, sample)
        args.state.aborted = False
        before = sample.response_length
        sample.loss_mask = [0] * before
        engine.aborting = 0.0
        sample = play(args, sample)
    assert sum(sample.loss_mask[:before]) == 0 < sum(sample.loss_mask[before:])


def test_an_abort_that_slime_did_not_ask_for_is_a_failure(tokenizer, games):
    engine = SGLangShaped(tokenizer, 3, aborting=1.0)
    engine.asked_to_abort = False
    with slime(tokenizer, engine) as args:
        sample = play(args, sample_of(games[0]))
    assert (sample.status, sample.reward, sample.remove_sample) == (Sample.Status.FAILED, 0.0, True)


def test_a_failed_sample_is_played_afresh(tokenizer, games):
    engine = SGLangShaped(tokenizer, 5)
    with slime(tokenizer, engine) as args:
        engine.failing = 0.5
        sample = play(args, sample_of(games[0]))
        while sample.status != Sample.Status.FAILED or not sample.response_length:
            sample = play(args, sample_of(games[0]))
        engine.failing, engine.asked = 0.0, []
        sample.status = Sample.Status.ABORTED  # as SLIME may call it, when it comes back from the buffer
        again = play(args, sample)
    assert again.status != Sample.Status.FAILED and not again.remove_sample
    assert again.tokens[: len(engine.asked[0][0])] == engine.asked[0][0]
    assert sum(again.loss_mask) == sum(len(ids) for _, ids, _ in engine.asked)


def test_failure_upon_failure_ends_the_training(tokenizer, games, caplog):
    caplog.set_level(logging.WARNING)
    with slime(tokenizer, SGLangShaped(tokenizer, 1, failing=1.0)) as args:
        args.rollout_batch_size, args.n_samples_per_prompt = 2, 2
        failures = 0
        with pytest.raises(UserError, match=r"40 episodes failed in a row.*EngineFailed: gone"):
            for index in itertools.count():
                assert play(args, sample_of(games[0], index)).status == Sample.Status.FAILED
                failures += 1
    assert failures == 39
    lines = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert len(lines) == 40 and all("EngineFailed: gone" in line for line in lines)


def sample_with(reward, group=0, seat="player-1", status=Sample.Status.COMPLETED, text="a"):
    return Sample(
        group_index=group, reward=reward, status=status, response=text, metadata={"seat": seat, "error": ""}
    )


def test_advantages_are_per_game_and_per_seat_and_without_the_failed(monkeypatch):
    samples = [
        sample_with(0.0), sample_with(10.0, seat="player-2"), sample_with(1.0), sample_with(12.0, seat="player-2"),
        sample_with(5.0, group=1), sample_with(7.0, group=1),
        sample_with(0.0, group=1, status=Sample.Status.FAILED),
    ]  # fmt: skip
    monkeypatch.setattr(
        hooks, "_config", lambda path: Config.model_validate({"train": {"divide_by_std": False}})
    )
    raw, values = hooks.normalise_rewards(SimpleNamespace(), samples)
    assert raw == [0.0, 10.0, 1.0, 12.0, 5.0, 7.0, 0.0]
    assert values == [-0.5, -1.0, 0.5, 1.0, -1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("check_reward_nonzero_std", [0.2, 0.4], [0.4, 0.4]),
        ("check_min_reward", [0.0, 0.2], [0.0, 0.05]),
        ("check_quality_and_diversity", [0.2, 0.4], [0.4, 0.4]),
    ],
)
def test_filters_of_rewards(name, good, bad):
    check = getattr(hooks, name)
    group = [sample_with(reward, text=str(i)) for i, reward in enumerate(good)]
    assert check(None, group).keep
    dropped = check(None, [sample_with(reward, text=str(i)) for i, reward in enumerate(bad)])
    assert not dropped.keep and dropped.reason in hooks.FILTERS


def test_filters_of_statuses_and_texts():
    failed = [sample_with(0.0), sample_with(0.0, status=Sample.Status.FAILED)]
    assert not hooks.check_no_failed_episode(None, failed).keep
    assert hooks.check_any_success(None, failed).keep
    assert not hooks.check_response_diversity(None, [sample_with(0.0), sample_with(1.0)]).keep
    assert hooks.check_response_diversity(None, [sample_with(0.0), sample_with(1.0, text="b")]).keep
    assert hooks.check_reasonable_length(None, failed).keep


def test_groups_that_are_dropped_for_ever_end_the_training():
    args = SimpleNamespace(rollout_batch_size=3, n_samples_per_prompt=2)
    group = [sample_with(1.0), sample_with(1.0)]
    with pytest.raises(UserError, match=r"30 groups .* the filter reward_varies"):
        for _ in range(100):
            assert not hooks.keep_group(args, group).keep


def test_the_oldest_go_first_and_what_was_interrupted_too_often_starts_over():
    fresh, stale = sample_with(None), sample_with(None)
    fresh.metadata |= {"interruptions": 2}
    stale.metadata |= {"interruptions": 3, "table": [[1]]}
    stale.tokens = [1, 2, 3]
    buffer = [[fresh], [stale], [sample_with(None)]]
    (first,), (second,) = hooks.oldest_first(None, None, buffer, 2)
    assert first is fresh and len(buffer) == 1
    assert (second.tokens, second.status, second.metadata) == ([], Sample.Status.PENDING, {"table": [[1]]})


def test_two_policies_give_two_samples_of_one_rollout(tokenizer, games):
    engine = SGLangShaped(tokenizer, 2)
    with slime(tokenizer, engine, seating={"players": ["policy", "policy"]}) as args:
        one, two = play(args, sample_of(games[0], index=3))
        assert one.rollout_id == two.rollout_id == 3
        assert [one.metadata["seat"], two.metadata["seat"]] == ["player-1", "player-2"]
        asked = [sum(ids == s.tokens[: len(ids)] for ids, _, _ in engine.asked) for s in (one, two)]
        assert sum(asked) == len(engine.asked) and all(asked)
        # SLIME's buffer takes no lists: interrupted after both have spoken, the dialogue starts over.
        engine.asked, engine.rng = (
            [],
            SimpleNamespace(random=lambda: 1 - len(engine.asked), integers=lambda n: 0),
        )
        engine.aborting = 0.5
        again = play(args, sample_of(games[0], index=4))
        assert (again.status, again.tokens) == (Sample.Status.ABORTED, [])


@pytest.fixture
def reducer(monkeypatch):
    """SLIME's own, without the Megatron that it asks for the size of the context-parallel group alone."""
    core = ModuleType("megatron.core")
    core.mpu = SimpleNamespace(get_context_parallel_world_size=lambda: 1)
    monkeypatch.setitem(sys.modules, "megatron", ModuleType("megatron"))
    monkeypatch.setitem(sys.modules, "megatron.core", core)
    path = Path(sglang_rollout.__file__).parents[1] / "backends/megatron_utils/cp_utils.py"
    spec = importlib.util.spec_from_file_location("cp_utils", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_sum_of_sample_mean


def converted(args, samples):
    """The training batch that SLIME's rollout manager makes of the samples."""
    manager = object.__new__(RolloutManager.__ray_metadata__.modified_class)
    manager.args = args
    manager.custom_convert_samples_to_train_data_func = None
    manager.custom_reward_post_process_func = hooks.normalise_rewards
    return manager._convert_samples_to_train_data(samples)


def test_slime_counts_an_episode_of_two_seats_once_as_we_do(tokenizer, games, reducer, tmp_path):
    with slime(tokenizer, SGLangShaped(tokenizer, 2), seating={"players": ["policy", "policy"]}) as args:
        played = [play(args, sample_of(games[0], index=n)) for n in range(6)]
        flat = list(itertools.chain.from_iterable(played))
        validate_rollout_id_annotated([played])
        data = converted(args, flat)
    numbers = [n for n, one in enumerate(played) for _ in one]
    assert len(flat) > 6 == len(set(data["rollout_ids"]))
    masks = [torch.tensor(mask, dtype=torch.float) for mask in data["loss_masks"]]
    weights = token_weights(torch.tensor([int(m.sum()) for m in masks]), torch.tensor(numbers), "episodes")

    def weights_by_slime(part):
        """Of each token of these samples, those of one microbatch: the gradient of its reduced loss."""
        lengths = [data["response_lengths"][i] for i in part]
        losses = torch.zeros(sum(lengths), requires_grad=True)
        denominators = [torch.tensor(data["rollout_mask_sums"][i]) for i in part]
        reduce = reducer([0] * len(part), lengths, [masks[i] for i in part], denominators)
        (reduce(losses) / len(set(data["rollout_ids"]))).backward()
        return losses.grad.split(lengths)

    everything = range(len(flat))
    for parts in ([everything], [everything[::2], everything[1::2]]):  # seats of one episode may be parted
        for part in parts:
            for i, theirs in zip(part, weights_by_slime(part), strict=True):
                assert torch.allclose(theirs, weights[i] * masks[i], atol=1e-8)


def test_alternating_seats_go_by_the_group(tokenizer, games):
    seating = {"players": ["policy", "scripted"], "alternate": True}
    with slime(tokenizer, SGLangShaped(tokenizer, 1), seating=seating) as args:
        for group in range(4):
            sample = sample_of(games[group])
            sample.group_index = group
            assert play(args, sample).metadata["seat"] == f"player-{1 + group % 2}"


KUHN = setting("kuhn")


def kuhn_rollout(args, rollout, groups=3, size=2):
    """Samples of one rollout, flat as SLIME hands them to the reward post-process, and logged before."""
    flat = []
    for number in range(rollout * groups * size, (rollout + 1) * groups * size):
        sample = sample_of(KUHN.lines[number // size % len(KUHN.lines)], index=number)
        sample.group_index = number // size
        flat += play(args, sample)
    hooks.log_rollout(rollout, args, flat, None, 1.0)
    return flat


@pytest.fixture
def kuhn_run(tmp_path, monkeypatch):
    """SLIME's arguments for Kuhn poker of the policy with itself, compared with moving baselines."""
    monkeypatch.setattr(hooks.logging_utils, "log", lambda *_, **__: None)
    monkeypatch.setattr(hooks, "compute_rollout_step", lambda args, rollout: rollout)
    hooks._kind.cache_clear()
    engine = SGLangShaped(KUHN.tokenizer, 4)
    engine.babbler = Babbler(KUHN.tokenizer, 4, ("[check]", "[bet]", "[fold]", "[call]"))
    engine.babbler.moods = 20
    players = {"players": ["policy", "policy"]}
    with slime(KUHN.tokenizer, engine, game="kuhn", seating=players, train={"advantage": "role"}) as args:
        args.rollout_max_context_len, args.slim_rl_folder = 2000, str(tmp_path)
        yield args


def test_moving_baselines_are_the_local_backends_and_outlive_a_restart(kuhn_run, tmp_path):
    rollouts = [kuhn_rollout(kuhn_run, number) for number in range(3)]
    local, expected, lines = {}, [], []
    for samples in rollouts:
        episodes = list({s.metadata["episode"].episode_id: s.metadata["episode"] for s in samples}.values())
        groups = [episodes[i : i + 2] for i in range(0, len(episodes), 2)]
        expected.append([s.advantage for s in sequences(TrainConfig(advantage="role"), groups, local)])
        lines.append(dict(local))

    def normalised(number):
        kuhn_run.logged_rollout_id = number
        return hooks.normalise_rewards(kuhn_run, rollouts[number])[1]

    assert [normalised(n) for n in range(3)] == [pytest.approx(values) for values in expected]
    noted = list(read_lines(tmp_path / hooks.BASELINES))
    assert [line["rollout"] for line in noted] == [0, 1, 2]
    assert [line["baselines"] for line in noted] == [pytest.approx(line) for line in lines]
    assert set(lines[-1]) == {"kuhn/first", "kuhn/second"} and all(lines[-1].values())
    # SLIME goes on from a checkpoint that is older than the last rollout.
    assert [normalised(n) for n in (1, 2)] == [pytest.approx(values) for values in expected[1:]]


def test_a_policy_that_never_had_a_turn_is_left_out(tokenizer, tmp_path, monkeypatch):
    """Its opponent lost by illegal moves before: there are no tokens to train, and nothing to compare."""

    class Blunders:
        async def respond(self, observation):
            return "[nonsense]"

    monkeypatch.setattr(KuhnKind, "player", lambda *arguments: Blunders())
    hooks._kind.cache_clear()
    players = {"players": ["scripted", "policy"]}
    engine = SGLangShaped(KUHN.tokenizer, 1)
    with slime(KUHN.tokenizer, engine, game="kuhn", seating=players, train={"divide_by_std": False}) as args:
        args.rollout_max_context_len = 2000
        samples = [play(args, sample_of(KUHN.lines[0], index=n)) for n in range(2)]
        data = converted(args, samples)
    assert engine.asked == [] and data["rewards"] == [0.0, 0.0]
    for sample in samples:
        assert sample.metadata["episode"].rewards == {"first": -1.0, "second": 1.0}
        assert sample.tokens and sample.response_length == 0 and sample.loss_mask == []


def test_groups_have_one_shape_for_slime(kuhn_run):
    """SLIME flattens a rollout by the shape of its first sample alone."""
    kuhn_run.state.aborted = False
    engine = hooks._engine(kuhn_run)
    engine.babbler.moods = 4  # nearly all it says is illegal, so that often the second seat has no turn
    played = [play(kuhn_run, sample_of(KUHN.lines[n % 8], index=n)) for n in range(12)]
    assert {len(samples) for samples in played} == {1, 2}


def test_slimes_buffer_is_not_asked_to_keep_lists():
    players = {"players": ["policy", "policy"]}
    with pytest.raises(ValueError, match=r"slime\.partial_rollout must be false"):
        Config.model_validate({"seating": players, "slime": {"partial_rollout": True}})
