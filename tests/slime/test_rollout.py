"""SLIME's own rollout, from our tasks to its training batch, without a GPU."""

import asyncio
import copy
import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils.http_utils import init_http_client
from slime.utils.misc import load_function
from slime.utils.types import Sample

from slim_rl.core.episode import TokenTrace
from slim_rl.engines.model import load_model
from slim_rl.games import load_games
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.seating import PolicyRules, Seating
from slim_rl.rollout.shards import read_episodes
from slim_rl.slime.samples import request_of
from slim_rl.training.grpo import sequences
from slim_rl.training.update import TrainedSequence, update
from slim_rl.training.weights import Weights
from tests.checkpoints import FAMILIES, chat_checkpoint
from tests.echo import EchoEngine, echo_tokenizer
from tests.slime.support import QWEN, SGLangShaped, answering, converted, data_source, router, server, slime_args

SEAT = "player-1"


def train_and_evaluate(args):
    """One rollout and one evaluation, as SLIME's rollout manager has them played and logged."""
    init_http_client(args)
    source = data_source(args)
    train = generate_rollout(args, 0, source)
    evaluation = generate_rollout(args, 0, source, evaluation=True)
    args.use_wandb = args.use_tensorboard = False
    samples = list(itertools.chain.from_iterable(train.samples))
    while isinstance(samples[0], list):
        samples = list(itertools.chain.from_iterable(samples))
    load_function(args.custom_rollout_log_function_path)(0, args, samples, train.metrics, 1.0)
    load_function(args.custom_eval_rollout_log_function_path)(0, args, evaluation.data, None)
    return SimpleNamespace(args=args, groups=train.samples, samples=samples, evaluation=evaluation.data["held_out"])


@pytest.fixture(scope="module")
def rollout(make_args, servers, tmp_path_factory):
    """32 tasks, 4 samples each."""
    folder = tmp_path_factory.mktemp("slime")
    parameters, args = make_args(folder, *servers)
    return SimpleNamespace(parameters=parameters, folder=folder, **vars(train_and_evaluate(args)))


def test_the_rollout_is_full_and_every_group_can_be_learnt_from(rollout):
    assert len(rollout.groups) == 32
    for group in rollout.groups:
        assert len(group) == 4 and len({sample.label for sample in group}) == 1
        assert len({sample.reward for sample in group}) > 1
        for sample in group:
            assert sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED)
            assert sample.reward == sample.metadata["played"].episode.rewards[SEAT]
    # Most are dialogues: the policy heard something between two turns. The tiny model's questions rarely name a cell.
    assert sum(0 in sample.loss_mask for sample in rollout.samples) > 64


def test_what_slime_trains_on_is_what_was_played(rollout):
    for sample in rollout.samples:
        assert_is_trace(sample, sample.metadata["played"].episode.traces[SEAT])
        assert sample.loss_mask[0] == 1  # the response begins with what the policy said


def assert_is_trace(sample, trace):
    prompt = len(sample.tokens) - sample.response_length
    assert sample.tokens == trace.token_ids
    assert [0] * prompt + sample.loss_mask == trace.loss_mask
    assert [0.0] * prompt + sample.rollout_log_probs == trace.logprobs


def test_evaluation_plays_every_held_out_task_once(rollout):
    played = rollout.evaluation
    assert len({sample.label for sample in played["samples"]}) == len(played["samples"]) == 32
    shard = list(read_episodes(rollout.folder / "evaluations/held_out"))
    assert [e.rewards[SEAT] for e in shard] == played["rewards"]


def test_a_training_step_from_it_is_the_local_backends(rollout, trained):
    """SLIME's conversion and our reward post-process give the advantages and the loss of `training/grpo.py`."""
    data = converted(rollout.args, rollout.samples)
    columns = ("tokens", "response_lengths", "loss_masks", "rollout_log_probs", "rewards")
    theirs = [
        TrainedSequence(TokenTrace(ids, [0] * (len(ids) - n) + mask, [0.0] * (len(ids) - n) + logprobs), value, i)
        for i, (ids, n, mask, logprobs, value) in enumerate(zip(*(data[name] for name in columns), strict=True))
    ]
    trained_on = (e for e in read_episodes(rollout.folder / "rollouts") if not e.dropped)
    episodes = sorted(trained_on, key=lambda e: e.game_id)
    groups = [list(g) for _, g in itertools.groupby(episodes, key=lambda e: e.game_id)]
    ours = sequences(rollout.parameters.train, groups, {})

    def by_tokens(sequences):
        return sorted((s.trace.token_ids, round(s.advantage, 4), s.advantage) for s in sequences)

    assert [(t, pytest.approx(a, abs=1e-5)) for t, _, a in by_tokens(ours)] == [(t, a) for t, _, a in by_tokens(theirs)]

    model, _ = load_model(trained)

    def step(sequences):
        optimizer = torch.optim.SGD((copied := copy.deepcopy(model)).parameters(), lr=1e-3)
        return asyncio.run(update(rollout.parameters.train, Weights(copied), [optimizer], sequences))

    local, slime = step(ours), step(theirs)
    assert slime["loss"] == pytest.approx(local["loss"], abs=1e-5)
    assert slime["grad_norm"] == pytest.approx(local["grad_norm"], rel=1e-4)
    assert slime["logprob_gap"] < 1e-4


def test_a_rollout_of_the_same_seed_is_the_same(rollout, make_args, servers, tmp_path):
    _, args = make_args(tmp_path, *servers, train={"games_per_step": 8, "filters": ["no_failed_episode"]})
    init_http_client(args)
    groups = generate_rollout(args, 0, data_source(args)).samples
    first = {(s.label, s.index): s.tokens for s in rollout.samples}
    shared = [(first[s.label, s.index], s.tokens) for g in groups for s in g if (s.label, s.index) in first]
    assert shared and all(a == b for a, b in shared)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_of_any_family_is_trained_on_what_it_was_sent(family, tmp_path):
    """Its log-probs, recomputed on the samples of a rollout, are those with which the server sampled."""
    base, max_turns = chat_checkpoint(tmp_path / "base", family), 4
    changes = dict(
        games={"matching": {"max_turns": max_turns, "train_count": 8, "eval_count": 2}},
        model={"base": str(base), "context_tokens": 2048, "system_prompt": "Play well."},
        train={"games_per_step": 4, "samples_per_game": 2, "filters": ["no_failed_episode"]},
    )
    with server(base) as (one, _), server(base) as (two, _), router(one, two) as port:
        parameters, args = slime_args(base, tmp_path / "run", (one, two), port, **changes)
        run = train_and_evaluate(args)
    model, tokenizer = load_model(base)
    assert "Play well." in tokenizer.decode(run.samples[0].tokens)
    assert len(run.samples) == 8 and sum(sum(sample.loss_mask) for sample in run.samples) > 8 * max_turns
    for number, sample in enumerate(run.samples):
        prompt = len(sample.tokens) - sample.response_length
        mask, logprobs = [0] * prompt + sample.loss_mask, [0.0] * prompt + sample.rollout_log_probs
        sequence = TrainedSequence(TokenTrace(sample.tokens, mask, logprobs), 1.0, number)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        told = asyncio.run(update(parameters.train, Weights(model), [optimizer], [sequence]))
        assert told["logprob_gap"] < 1e-4


@pytest.fixture
def echo(tmp_path):
    """A checkpoint folder with a tokenizer for `tests.echo`, and the port of a router before an engine that plays it."""
    tokenizer = echo_tokenizer()
    tokenizer.save_pretrained(tmp_path / "base")
    (tmp_path / "base/config.json").write_text(json.dumps(QWEN))
    engine = SGLangShaped(tokenizer, 0, engine=EchoEngine(tokenizer, looks=2))
    return tmp_path / "base", answering(engine)


def test_tools_and_several_games_are_played_as_on_the_local_backend(echo, tmp_path):
    base, port = echo
    games = {
        "matching": None,
        "tests.echo": {"weight": 2, "train_count": 4, "eval_count": 2, "max_turns": 5},
        "kuhn": {"seating": ["policy", "policy"], "train_count": 2, "eval_count": 2},
    }
    train = {"games_per_step": 6, "samples_per_game": 2, "filters": ["no_failed_episode"]}
    model = {"context_tokens": 4096, "turn_tokens": 200}
    parameters, args = slime_args(base, tmp_path / "run", (), port, games=games, train=train, model=model)
    played = train_and_evaluate(args)
    games = load_games(parameters.games, parameters.seed)
    tokenizer = echo_tokenizer()
    rules = PolicyRules(Renderer(tokenizer, thinking=False), 200, 1.0)
    local = Seating(games, {"policy": rules.maker(EchoEngine(tokenizer, looks=2))}, parameters.seed)
    names = [sample.metadata["task"]["game"] for sample in played.samples]
    assert {name: names.count(name) for name in games} == {"tests.echo": 8, "kuhn": 4}
    for sample in played.samples + played.evaluation["samples"]:
        purpose = sample.metadata["played"].episode.episode_id.partition("/")[0]
        blank = replace(sample, metadata={"task": sample.metadata["task"]})
        episode = asyncio.run(local.play(request_of(blank, parameters.games, purpose)))
        assert_is_trace(sample, episode.traces[sample.metadata["played"].seat])
        assert sample.reward == episode.rewards[sample.metadata["played"].seat]
        if episode.game == "tests.echo":
            assert sample.reward == 1.0 and episode.metrics["calls"] == 2.0
            heard = tokenizer.decode(
                [t for t, m in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True) if not m]
            )
            assert heard.count("<tool_response>") == 2
