"""What SLIME gets from the hooks, whatever a model, an engine or a partner come up with."""

import asyncio
import itertools
import logging
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slime.rollout import sglang_rollout
from slime.utils.types import Sample

from slim_rl.config import Config
from slim_rl.engines.engine import EngineFailed
from slim_rl.errors import UserError
from slim_rl.slime import hooks
from tests.babbler import Babbler


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
