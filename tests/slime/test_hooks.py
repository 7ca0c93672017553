"""What SLIME gets from the hooks, whatever a model, an engine or a partner do."""

import asyncio
import itertools
import logging
import pickle
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slime.utils.types import Sample

from slim_rl.core.episode import Episode, TokenTrace, Turn
from slim_rl.core.errors import PlayerFailed, UserError
from slim_rl.core.message import said
from slim_rl.core.player import Player, ScriptedPlayer
from slim_rl.games import game_parameters, load_games
from slim_rl.games.openreward import Parameters
from slim_rl.rollout.shards import read_episodes, read_frame
from slim_rl.runtime.journal import read_lines
from slim_rl.slime import context, logs
from slim_rl.slime.context import Context
from slim_rl.slime.generate import generate
from slim_rl.slime.groups import STATE, judge_group, keep_group, normalise_rewards
from slim_rl.slime.progress import held_out
from slim_rl.slime.samples import Played
from slim_rl.training.config import TrainConfig
from slim_rl.training.grpo import sequences
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer
from tests import echo
from tests.babbler import Babbler
from tests.checkpoints import FAMILIES, chat_tokenizer
from tests.fake_time import now, run_in_fake_time
from tests.games.openreward.conftest import Solver, request, seating, serving
from tests.rollout.test_tokens import SAID as SPOKEN
from tests.rollout.test_tokens import SEATINGS, Talker, language
from tests.settings import setting
from tests.slime.support import (
    CONTEXT_TOKENS,
    TURN_TOKENS,
    SGLangShaped,
    answering,
    check_sent_is_trained_on,
    converted,
    play,
    play_to_the_end,
    sample_of,
    slime,
)

NUMBERS = itertools.count()
PLAYED = (Sample.Status.COMPLETED, Sample.Status.TRUNCATED)
SELF_PLAY = {"matching": {"seating": ["policy", "policy"]}}
KUHN = setting("kuhn")
LEGAL = ("[check]", "[bet]", "[fold]", "[call]")
WORDS = echo.echo_tokenizer()
TASKS = list(echo.taskset(echo.Parameters(), 0, "").tasks("train", 4))
FILTERS = ["no_failed_episode", "reward_varies"]
ECHO = {"matching": None, "tests.echo": {"max_turns": 6}}


# Tokens


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_goes_to_the_engine_is_what_is_trained_on_in_every_family(family, tasks, seed):
    tokenizer = chat_tokenizer(family)
    engine = SGLangShaped(tokenizer, seed)
    with slime(tokenizer, engine, context_tokens=4 * CONTEXT_TOKENS, model={"system_prompt": "Play well."}) as args:
        sample = play(args, sample_of(tasks[seed % len(tasks)]))
    check_sent_is_trained_on(sample, engine)
    assert "Play well." in tokenizer.decode(sample.tokens)


@pytest.mark.parametrize("thinking", [False, True], ids=["", "thinking"])
@pytest.mark.parametrize(("game", "seating"), SEATINGS)
def test_what_goes_to_the_engine_is_what_is_trained_on(game, seating, thinking):
    """Also where engines fail, and an interrupted episode goes on; that of two policies would start over."""
    tokenizer, named = language(game, seating)
    tasks, games = list(named.taskset.tasks("train", 8)), {"matching": None, game: named.parameters.model_dump()}
    context_tokens, aborting = (
        (20_000 if game == "tests.echo" else CONTEXT_TOKENS),
        0.2 * (seating.count("policy") == 1),
    )
    model = {"thinking": thinking, "turn_tokens": 60, "tool_tokens": 50}
    for seed in range(40):
        engine = SGLangShaped(tokenizer, seed, 0.03, aborting, Talker(tokenizer, seed, SPOKEN[game]))
        with slime(tokenizer, engine, context_tokens=context_tokens, games=games, model=model) as args:
            played = play_to_the_end(args, sample_of(tasks[seed % 8], seed, game), max_new_tokens=60)
        samples = played if isinstance(played, list) else [played]
        parts = [check_sent_is_trained_on(sample, engine) for sample in samples]
        assert sum(parts) == len(engine.asked) or samples[0].status == Sample.Status.FAILED
        for sample in samples:
            assert 0 < len(sample.tokens) <= context_tokens and sample.reward is not None
            assert sample.remove_sample == (sample.status == Sample.Status.FAILED)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_an_abort_that_slime_did_not_ask_for_costs_no_token(tokenizer, tasks, seed):
    """New weights in the middle of a turn: what was sampled stays, and the rest is asked for."""
    engine = SGLangShaped(tokenizer, seed, aborting=0.5)
    engine.asked_to_abort = False
    with slime(tokenizer, engine) as args:
        sample = play(args, sample_of(tasks[0]))
    (trace,) = sample.metadata["played"].episode.traces.values()
    assert sample.status in PLAYED and sample.tokens == trace.token_ids
    assert sum(sample.loss_mask) == sum(len(ids) for _, ids, _ in engine.asked)
    for (asked, ids, _), (following, _, _) in itertools.pairwise(engine.asked):
        assert following[: len(asked) + len(ids)] == [*asked, *ids]
    runs = [len(list(run)) for sampled, run in itertools.groupby(trace.loss_mask) if sampled]
    assert max(runs, default=0) <= TURN_TOKENS  # the limit holds for a turn as a whole


def test_slimes_limits_and_seed_reach_the_engine(tokenizer, tasks):
    engine = SGLangShaped(tokenizer, 1)
    with slime(tokenizer, engine, context_tokens=200) as args:
        args.eval_max_context_len = 120
        one = play(args, sample_of(tasks[0]), sampling_seed=7, top_p=0.9, max_new_tokens=5)
        assert all(params["top_p"] == 0.9 for _, params in engine.params)
        assert all(sampling.max_new_tokens <= 5 for sampling, _ in engine.params)
        seeds = [sampling.seed for sampling, _ in engine.params]
        engine.params.clear()
        play(args, sample_of(tasks[0]), sampling_seed=8)
        assert len(set(seeds)) == len(seeds) and seeds[0] != engine.params[0][0].seed
        evaluated = play(args, sample_of(tasks[0]), evaluation=True)
    assert len(one.tokens) <= 200 and len(evaluated.tokens) <= 120


def test_what_is_kept_of_a_sample_and_of_slimes_arguments(tokenizer, tasks):
    """A game's state is apart from the episode, and SLIME can send its arguments to another process."""
    with slime(tokenizer, SGLangShaped(tokenizer, 1)) as args:
        sample = play(args, sample_of(tasks[0]))
        args.state = None
        assert pickle.loads(pickle.dumps(args)).slim_rl_context is None
        assert pickle.loads(pickle.dumps(sample.metadata)) == sample.metadata  # 0.4 saves those that wait
    assert sample.metadata["task"] == {"game": "matching", "state": tasks[0].state}
    assert set(sample.metadata) == {"task", "played"}


# Interruptions


def test_nothing_is_sent_once_slime_has_aborted(tokenizer, tasks):
    engine = SGLangShaped(tokenizer, 1)
    with slime(tokenizer, engine) as args:
        args.state.aborted = True
        sample = play(args, sample_of(tasks[0]))
        assert (sample.status, sample.reward, engine.asked) == (Sample.Status.ABORTED, None, [])
        args.state.aborted = False
        assert play(args, sample).status != Sample.Status.ABORTED


def test_what_was_sampled_by_older_weights_can_be_masked(tokenizer, tasks):
    """`--mask-offpolicy-in-partial-rollout`: SLIME zeroes the mask before it goes on."""
    engine = SGLangShaped(tokenizer, 3, aborting=1.0)
    with slime(tokenizer, engine) as args:
        sample = play(args, sample_of(tasks[0]))
        while not sample.response_length:
            args.state.aborted = False
            sample = play(args, sample)
        args.state.aborted, engine.aborting = False, 0.0
        before = sample.response_length
        sample.loss_mask = [0] * before
        sample = play(args, sample)
    assert sum(sample.loss_mask[:before]) == 0 < sum(sample.loss_mask[before:])


class Late(Player):
    """A partner whose every turn waits for `before()`."""

    def __init__(self, player, before):
        self.player, self.before, self.recall = player, before, player.recall

    async def respond(self, observation, tools=()):
        await self.before()
        return await self.player.respond(observation, tools)


def test_a_full_rollout_does_not_wait_in_a_partners_queue(tokenizer, tasks, monkeypatch):
    free, calls = asyncio.Event(), []

    async def queue():
        calls.append("waits")
        try:
            await free.wait()
        except asyncio.CancelledError:
            calls.append("cancelled")
            raise

    def maker(seat):
        return Late(seat.of.taskset.player("scripted", seat.game, seat.name, seat.seed), queue)

    monkeypatch.setattr(context, "service_makers", lambda names, services: {"service:gpt": maker})
    games = {"matching": {"seating": ["policy", "service:gpt"]}}
    engine = SGLangShaped(tokenizer, 1)
    engine.engine.moods = 1000  # it asks a question
    with slime(tokenizer, engine, games=games, services={"gpt": {}}) as args:

        async def full():
            playing = asyncio.create_task(generate(args, sample_of(tasks[0]), {"max_new_tokens": 16}))
            while not calls:
                await asyncio.sleep(0.01)
            args.state.aborted = True
            return await playing

        sample = run_in_fake_time(full())
        assert sample.status == Sample.Status.ABORTED and calls == ["waits", "cancelled"] and sample.response_length
        said = list(sample.tokens)
        args.state.aborted = False
        free.set()
        again = play(args, sample)
    assert again.status in PLAYED and again.tokens[: len(said)] == said


# Failures


def test_an_engine_that_never_says_anything_fails_the_episode(tokenizer, tasks):
    engine = SGLangShaped(tokenizer, 3, aborting=1.0)
    engine.asked_to_abort, engine.rng = False, SimpleNamespace(random=lambda: 0.5, integers=lambda n: 0)
    with slime(tokenizer, engine) as args:
        sample = play(args, sample_of(tasks[0]))
    assert sample.status == Sample.Status.FAILED and "by itself" in sample.metadata["played"].episode.error


def test_a_failed_sample_is_played_afresh(tokenizer, tasks):
    engine = SGLangShaped(tokenizer, 5)
    with slime(tokenizer, engine) as args:
        engine.failing = 0.5
        sample = play(args, sample_of(tasks[0]))
        while sample.status != Sample.Status.FAILED or len(engine.asked) < 2:
            engine.asked = []
            sample = play(args, sample_of(tasks[0]))
        engine.failing, engine.asked = 0.0, []
        sample.status = Sample.Status.ABORTED  # as SLIME may set it, when the sample comes back from its buffer
        again = play(args, sample)
    assert again.status != Sample.Status.FAILED and not again.remove_sample
    assert again.tokens[: len(engine.asked[0][0])] == engine.asked[0][0]
    assert sum(again.loss_mask) == sum(len(ids) for _, ids, _ in engine.asked)


def test_failure_upon_failure_ends_the_training(tokenizer, tasks, caplog):
    caplog.set_level(logging.WARNING)
    with slime(tokenizer, SGLangShaped(tokenizer, 1, failing=1.0)) as args:
        args.rollout_batch_size, args.n_samples_per_prompt = 4, 5
        for index in range(39):
            assert play(args, sample_of(tasks[0], index)).status == Sample.Status.FAILED
        with pytest.raises(UserError, match=r"^matching: 40 .*EngineFailed: gone"):
            play(args, sample_of(tasks[0], 39))
    lines = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert len(lines) == 40 and all("EngineFailed: gone" in line for line in lines)


@pytest.fixture
def partner_fails(matching, monkeypatch):
    """A function that makes the first `times` turns of the matching game's partner fail."""

    def begin(times):
        kind, calls = type(matching.taskset), itertools.count()
        steady = kind.player

        async def fail():
            if next(calls) < times:
                await asyncio.sleep(0.002)
                raise PlayerFailed from ConnectionError("nobody answers at partner.example")

        monkeypatch.setattr(kind, "player", lambda *given: Late(steady(*given), fail))

    return begin


def test_a_partner_that_is_gone_ends_the_training(tokenizer, tasks, partner_fails):
    """After `retry_seconds`, not after thousands of episodes, and the sentence says who."""
    partner_fails(10**9)
    engine = SGLangShaped(tokenizer, 1)
    engine.engine.moods = 1000
    with slime(tokenizer, engine, slime={"retry_seconds": 1.5, "request_timeout_seconds": 0.5}) as args:
        args.rollout_batch_size, args.n_samples_per_prompt = 50, 20

        async def train():
            for index in itertools.count():
                try:
                    await generate(args, sample_of(tasks[0], index), {"max_new_tokens": TURN_TOKENS})
                except UserError as error:
                    return index + 1, now(), str(error)

        played, seconds, sentence = run_in_fake_time(train())
    assert "nobody answers at partner.example" in sentence
    assert seconds >= 1.5 and 500 <= played < 2000


def test_an_episode_that_its_partner_failed_is_played_again(tokenizer, tasks, partner_fails):
    partner_fails(1)
    engine = SGLangShaped(tokenizer, 1)
    engine.engine.moods = 1000
    with slime(tokenizer, engine) as args:
        sample = play(args, sample_of(tasks[0]))
    assert sample.status in PLAYED
    assert sample.tokens == sample.metadata["played"].episode.traces["player-1"].token_ids


REPLAYED = {"rollout_top_p": 0.9, "use_rollout_routing_replay": True, "num_layers": 2, "moe_router_topk": 1,
            "num_experts": 1024}  # fmt: skip


class Routing(SGLangShaped):
    """Answers with what SLIME replays in training: the experts of each token, and the tokens that top-p left."""

    async def request(self, input_ids, sampling, sampling_params=None, given_up=lambda: False, more=None):
        answer = await super().request(input_ids, sampling, sampling_params)
        sampled = len(answer["meta_info"]["output_token_logprobs"])
        assert more == {"return_routed_experts": True}
        experts = torch.arange(2 * (len(input_ids) + sampled - 1), dtype=torch.int32)
        left = {"top_p_token_ids": list(range(sampled)), "top_p_token_offsets": list(range(sampled + 1))}
        answer["meta_info"] |= {"routed_experts": experts, **left}
        return answer


@pytest.mark.parametrize(("engine", "replayed"), [(SGLangShaped, {}), (Routing, REPLAYED)])
def test_failed_samples_do_not_break_slimes_training_batch(tokenizer, tasks, engine, replayed):
    """Also where filters of the user's own keep their group, with routing replay and top-p."""
    with slime(tokenizer, engine(tokenizer, 1, failing=0.3)) as args:
        vars(args).update(replayed)
        samples = [play(args, sample_of(tasks[n % 8], n)) for n in range(16)]
        data = converted(args, samples)
    assert {sample.status for sample in samples} >= {Sample.Status.FAILED, Sample.Status.COMPLETED}
    for tokens, n, mask, logprobs in zip(
        data["tokens"], data["response_lengths"], data["loss_masks"], data["rollout_log_probs"], strict=True
    ):
        assert tokens and len(torch.tensor(mask)) == len(torch.tensor(logprobs)) == n
    if replayed:
        for tokens, experts in zip(data["tokens"], data["rollout_routed_experts"], strict=True):
            assert experts.shape == (len(tokens) - 1, 2, 1)
        for n, offsets in zip(data["response_lengths"], data["rollout_top_p_token_offsets"], strict=True):
            assert len(offsets) == n + 1


# Games


def test_a_frozen_opponent_plays_on_the_gpus_if_slime_serves_it(tokenizer, tasks, tmp_path):
    tokenizer.save_pretrained(tmp_path / "frozen")
    name = str(tmp_path / "frozen")
    engine, other = SGLangShaped(tokenizer, 1), SGLangShaped(tokenizer, 2)
    engine.engine.moods = other.engine.moods = 1000
    with slime(tokenizer, engine, games={"matching": {"seating": ["policy", f"checkpoint:{name}"]}}) as args:
        args.sglang_model_routers = {"default": ("127.0.0.1", 1), name: ("127.0.0.1", answering(other))}
        sample = play(args, sample_of(tasks[0]), run=asyncio.run)
    assert sample.status in PLAYED and other.asked
    assert list(sample.metadata["played"].episode.traces) == ["player-1"]
    assert sum(sample.loss_mask) == sum(len(ids) for _, ids, _ in engine.asked)


def test_the_calculator_and_an_environment_are_played_as_on_the_local_backend(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = load_games({"calculator": game_parameters("calculator", {})}, 0)["calculator"]
    dialogues = [own.taskset.demonstrate(task, "solver") for task in own.taskset.tasks("demonstrations", 40)]
    words = small_tokenizer(chat_corpus(dialogues))
    with serving(tmp_path) as server:
        name = f"openreward:{server.url}"
        games = {"calculator": own, **load_games({name: Parameters(min_reward=0)}, 0)}
        for game in games.values():
            task = next(iter(game.taskset.tasks("train", 1)))
            local = asyncio.run(seating(game, words, Solver(words)).play(request(game, task)))
            engine = SGLangShaped(words, 0, engine=Solver(words))
            games = {"matching": None, game.name: game.parameters.model_dump()}
            with slime(words, engine, context_tokens=20_000, games=games, model={"turn_tokens": 300}) as args:
                sample = play(args, sample_of(task, game=game.name), run=asyncio.run, max_new_tokens=300)
            assert (sample.status, sample.reward) == (Sample.Status.COMPLETED, 1.0)
            assert sample.tokens == local.traces["solver"].token_ids
        assert server.counts()["open"] == []


def test_two_policies_give_two_samples_of_one_rollout(tokenizer, tasks):
    engine = SGLangShaped(tokenizer, 2)
    with slime(tokenizer, engine, games=SELF_PLAY) as args:
        one, two = play(args, sample_of(tasks[0], index=3))
        assert one.rollout_id == two.rollout_id == 3
        assert [one.metadata["played"].seat, two.metadata["played"].seat] == ["player-1", "player-2"]
        asked = [sum(ids == s.tokens[: len(ids)] for ids, _, _ in engine.asked) for s in (one, two)]
        assert sum(asked) == len(engine.asked) and all(asked)
        # SLIME's buffer takes no lists: interrupted after both have spoken, the dialogue starts over.
        random = SimpleNamespace(random=lambda: 1 - len(engine.asked), integers=lambda n: 0)
        engine.asked, engine.rng, engine.aborting = [], random, 0.5
        engine.engine.moods = 10**9  # a turn that is not legal would be followed by another of the same seat
        again = play(args, sample_of(tasks[0], index=4))
        assert (again.status, again.tokens) == (Sample.Status.ABORTED, [])


def kuhn_sample(number, size=1):
    return sample_of(KUHN.tasks[number // size % 8], index=number, game="kuhn", group=number // size)


@pytest.fixture
def kuhn_run(tmp_path, monkeypatch):
    """SLIME's arguments for Kuhn poker of the policy with itself, compared with moving averages."""
    logged = []
    monkeypatch.setattr(logs.logging_utils, "log", lambda args, metrics, **_: logged.append(metrics))
    monkeypatch.setattr(logs, "compute_rollout_step", lambda args, rollout: rollout)
    engine = SGLangShaped(KUHN.tokenizer, 4, engine=Babbler(KUHN.tokenizer, 4, LEGAL))
    engine.engine.moods = 20
    games = {"matching": None, "kuhn": {"seating": ["policy", "policy"]}}
    with slime(
        KUHN.tokenizer, engine, tmp_path, 2000, games=games, train={"advantage": "role", "filters": FILTERS}
    ) as args:
        args.logged = logged
        yield args


def test_groups_have_one_shape_for_slime(kuhn_run):
    """SLIME flattens a rollout by the shape of its first sample alone."""
    Context.of(kuhn_run).engine.engine.moods = 4  # most turns are illegal, so the second seat often has none
    assert {len(play(kuhn_run, kuhn_sample(n))) for n in range(12)} == {1, 2}


# Groups


def longest(episodes, tasks):
    assert [task.state["word"] for task in tasks]
    longest = max(len(e.turns) for e in episodes)
    return [float(len(e.turns) == longest) for e in episodes]


def test_a_group_is_judged_together():
    reward = {"function": f"{__name__}:longest", "scope": "group"}
    games, samples = {"matching": None, "tests.echo": {"reward_function": reward}}, []
    for number, looks in enumerate((1, 3)):
        engine = SGLangShaped(WORDS, 0, engine=echo.EchoEngine(WORDS, looks))
        with slime(WORDS, engine, context_tokens=20_000, games=games, model={"turn_tokens": 300}) as args:
            samples.append(play(args, sample_of(TASKS[0], number, "tests.echo"), max_new_tokens=300))
    assert asyncio.run(judge_group(args, samples)) == [0.0, 1.0]
    assert [s.metadata["played"].episode.rewards for s in samples] == [{"solver": 0.0}, {"solver": 1.0}]


def test_all_episodes_are_in_the_shards_and_both_means_are_logged(kuhn_run, tmp_path):
    """96 played, 32 kept: what is trained on is not what the policy plays like."""
    groups = []
    for number in range(24):
        group = [play(kuhn_run, kuhn_sample(4 * number + n, size=4)) for n in range(4)]
        for n, pair in enumerate(group):
            episode = pair[0].metadata["played"].episode
            episode.rewards = {seat: 2.0 * (n % 2) if number < 8 else 0.0 for seat in episode.rewards}
        groups.append(group)
    kept = [group for group in groups if keep_group(kuhn_run, group).keep]
    logs.log_rollout(7, kuhn_run, [s for group in kept for pair in group for s in pair], None, 1.0)
    shard = list(read_episodes(tmp_path / "rollouts"))
    assert len(shard) == 96 and sum(not episode.dropped for episode in shard) == 32
    assert {episode.dropped for episode in shard} == {"", "reward_varies"}
    curve = read_frame(tmp_path / "rollouts")
    (metrics,) = kuhn_run.logged
    assert len(curve) == 96 and curve["reward.first"].mean() == pytest.approx(1 / 3)
    assert (metrics["rollout/reward"], metrics["rollout/all/reward"]) == (1.0, pytest.approx(1 / 3))
    assert metrics["rollout/env/kuhn/episodes"] == 32 and metrics["rollout/step"] == 7
    (line,) = read_lines(tmp_path / "metrics.jsonl")
    assert line["step"] == 7 and line["metrics"]["all/env/kuhn/episodes"] == 96
    logs.log_rollout(8, kuhn_run, [s for pair in groups[0] for s in pair], None, 1.0)
    assert len(list(read_episodes(tmp_path / "rollouts/step-00008"))) == 4  # nothing of the last rollout


def test_an_evaluation_is_numbered_by_the_updates_before_it(kuhn_run, tmp_path):
    """SLIME evaluates the untrained model as rollout 0, and with `evaluate_every: 1` so the model after the first update."""

    def evaluate(rollout):
        samples = play(kuhn_run, kuhn_sample(0), evaluation=True)
        data = {"held_out": {"rewards": [0.0] * len(samples), "samples": samples}}
        logs.log_evaluation(rollout, kuhn_run, data, None)

    evaluate(0)
    for rollout in (0, 1):
        logs.log_rollout(rollout, kuhn_run, play(kuhn_run, kuhn_sample(1)), None, 1.0)
        evaluate(rollout)
    assert list(held_out(tmp_path)["step"]) == [0, 1, 2]
    assert [episode.step for episode in read_episodes(tmp_path / "evaluations/held_out")] == [0, 1, 2]
    assert [metrics["eval/step"] for metrics in kuhn_run.logged if "eval/step" in metrics] == [0, 1, 2]


def test_an_evaluation_of_which_all_episodes_failed_has_no_reward(kuhn_run):
    """SLIME logs a mean for each entry of `data`, and would log 0."""
    data = {}
    for name, failed in (("broken", 3), ("half", 1)):
        samples = [play(kuhn_run, kuhn_sample(n), evaluation=True)[0] for n in range(3)]
        for sample in samples[:failed]:
            sample.status = sample.Status.FAILED
        data[name] = {"rewards": [1.0] * 3, "truncated": [False] * 3, "samples": samples}
    assert logs.log_evaluation(7, kuhn_run, data, None) is False
    assert list(data) == ["half"] and len(data["half"]["samples"]) == len(data["half"]["rewards"]) == 2


def sample_with(reward, group=0, seat="a", status="completed"):
    """A sample of an episode of its own."""
    trace = TokenTrace([1, 2], [0, 1], [0.0, -1.0])
    episode = Episode(str(next(NUMBERS)), "", status=status, turns=[Turn(seat, (), said("a"))])
    episode.rewards, episode.traces = {seat: reward}, {seat: trace}
    metadata = {"played": Played(episode, seat)}
    return Sample(group_index=group, reward=reward, tokens=[1, 2], response_length=1, metadata=metadata)


@pytest.mark.parametrize("name", ["reward_varies", "slim_rl.rollout.filters:reward_varies"])
def test_a_filter_drops_a_group_by_its_name_or_import_path(tokenizer, name):
    with slime(tokenizer, SGLangShaped(tokenizer, 1), train={"filters": [name]}) as args:
        assert keep_group(args, [sample_with(0.2), sample_with(0.4)]).keep
        result = keep_group(args, [sample_with(0.4), sample_with(0.4)])
    assert (result.keep, result.reason) == (False, name)


def test_groups_that_are_dropped_for_ever_end_the_training(tokenizer):
    group = [sample_with(1.0), sample_with(1.0)]
    failed = [sample_with(1.0), sample_with(0.0, status="failed")]
    with slime(tokenizer, SGLangShaped(tokenizer, 1), train={"filters": FILTERS}) as args:
        args.rollout_batch_size, args.n_samples_per_prompt = 3, 2
        for _ in range(100):  # these do not speak against the model
            assert keep_group(args, failed).reason == "no_failed_episode"
        for _ in range(29):
            assert not keep_group(args, group).keep
        with pytest.raises(UserError, match=r"^30 .*reward_varies"):
            keep_group(args, group)


# Advantages


def test_advantages_are_per_game_and_per_seat_and_without_the_failed(tokenizer):
    samples = [
        sample_with(0.0), sample_with(10.0, seat="b"), sample_with(1.0), sample_with(12.0, seat="b"),
        sample_with(5.0, group=1), sample_with(7.0, group=1),
        sample_with(0.0, group=1, status="failed"),
    ]  # fmt: skip
    with slime(tokenizer, SGLangShaped(tokenizer, 1), train={"divide_by_std": False}) as args:
        raw, values = normalise_rewards(args, samples)
    assert raw == [0.0, 10.0, 1.0, 12.0, 5.0, 7.0, 0.0]
    assert values == [-0.5, -1.0, 0.5, 1.0, -1.0, 1.0, 0.0]


def test_an_estimators_state_is_the_local_backends_and_outlives_a_restart(kuhn_run, tmp_path):
    rollouts, local, expected, states = [], {}, [], []
    for rollout in range(3):
        samples = [s for n in range(6 * rollout, 6 * rollout + 6) for s in play(kuhn_run, kuhn_sample(n, size=2))]
        logs.log_rollout(rollout, kuhn_run, samples, None, 1.0)
        episodes = list({s.index: s.metadata["played"].episode for s in samples}.values())
        groups = [episodes[i : i + 2] for i in range(0, len(episodes), 2)]
        expected.append([s.advantage for s in sequences(TrainConfig(advantage="role"), groups, local)])
        states.append(dict(local))
        rollouts.append(samples)

    def normalised(number):
        kuhn_run.logged_rollout_id = number
        return normalise_rewards(kuhn_run, rollouts[number])[1]

    assert [normalised(n) for n in range(3)] == [pytest.approx(values) for values in expected]
    lines = list(read_lines(tmp_path / STATE))
    assert [line["rollout"] for line in lines] == [0, 1, 2]
    assert [line["state"] for line in lines] == [pytest.approx(state) for state in states]
    assert set(states[-1]) == {"kuhn/first", "kuhn/second"} and all(states[-1].values())
    assert kuhn_run.logged[-1]["rollout/advantage/kuhn/first"] == pytest.approx(states[-1]["kuhn/first"])
    # SLIME goes on from a checkpoint that is older than the last rollout.
    assert [normalised(n) for n in (1, 2)] == [pytest.approx(values) for values in expected[1:]]


def test_a_policy_that_never_had_a_turn_is_left_out(monkeypatch):
    """Its opponent lost by illegal moves before: there are no tokens to train, and nothing to compare."""

    class Blunders(ScriptedPlayer):
        def turn(self, observation):
            return "[nonsense]"

    monkeypatch.setattr(type(KUHN.game.taskset), "player", lambda *arguments: Blunders())
    engine = SGLangShaped(KUHN.tokenizer, 1)
    games = {"matching": None, "kuhn": {"seating": ["scripted", "policy"]}}
    with slime(KUHN.tokenizer, engine, context_tokens=2000, games=games, train={"divide_by_std": False}) as args:
        samples = [play(args, kuhn_sample(n)) for n in range(2)]
        data = converted(args, samples)
    assert engine.asked == [] and data["rewards"] == [0.0, 0.0]
    for sample in samples:
        assert sample.metadata["played"].episode.rewards == {"first": -1.0, "second": 1.0}
        assert sample.tokens and sample.response_length == 0 and sample.loss_mask == []
