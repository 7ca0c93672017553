"""The trainer's numbers against the formulas written out, and going on after a kill."""

import asyncio
import copy
import math

import numpy as np
import pytest
import torch

from slim_rl.core.episode import Episode, TokenTrace
from slim_rl.core.errors import GameFailed, UserError
from slim_rl.core.game import Game
from slim_rl.core.parameters import RewardConfig
from slim_rl.engines.engine import EngineFailed
from slim_rl.engines.local import MIN_SHARED_TOKENS, LocalEngine
from slim_rl.games import load_games
from slim_rl.games.kuhn import Parameters as Kuhn
from slim_rl.games.matching import Parameters as Matching
from slim_rl.rollout.seating import PolicyRules, Seating
from slim_rl.rollout.shards import read_episodes, read_frame
from slim_rl.rollout.tasks import Mixture
from slim_rl.training import grpo
from slim_rl.training import update as updates
from slim_rl.training.backend import LocalBackend
from slim_rl.training.checkpoint import load_state
from slim_rl.training.config import TrainConfig
from slim_rl.training.grpo import Rollouts, Trainer
from slim_rl.training.loss import is_clipped, kl_estimate, policy_loss, token_weights
from slim_rl.training.optimizer import Muon, muon_and_adamw
from slim_rl.training.tiny import tiny_qwen
from slim_rl.training.update import TrainedSequence
from slim_rl.training.weights import Weights
from tests.settings import counting
from tests.training.short import same_weights

SMALL = dict(
    steps=3, games_per_step=2, samples_per_game=3, filters=(), learning_rate=1e-3,
    advantage="tests.training.estimators:alternating",
)  # fmt: skip
QUICK = dict(steps=2, games_per_step=1, samples_per_game=3)
GAMES = load_games(
    {"matching": Matching(max_turns=8), "kuhn": Kuhn(seating=("policy", "policy"), max_turns=4, weight=2.0)}, seed=0
)


def update(config, model, reference, *arguments, **options):
    weights = Weights(model)
    weights.frozen = reference
    config = config.model_copy(update={"max_logprob_gap": 100.0})  # the log-probs of the sequences are made
    return asyncio.run(updates.update(config, weights, *arguments, **options))


def seating(engine, renderer):
    rules = PolicyRules(renderer, max_turn_tokens=12, temperature=1.0)
    return Seating(GAMES, {"policy": rules.maker(engine)}, seed=0)


def mixture(*names):
    tasks = {name: list(GAMES[name].taskset.tasks("train", 8)) for name in names}
    return Mixture(tasks, {name: GAMES[name].parameters.weight for name in names})


def run(model, renderer, folder, games=("kuhn",), wrap=lambda engine: engine, paid=False, **changes):
    """The log of a run, which ends with a state on disk."""
    log, engine = [], LocalEngine(model)
    rollouts = Rollouts(mixture(*games), seating(wrap(engine), renderer), 64, paid)
    config = TrainConfig(**{**SMALL, **changes})
    trainer = Trainer(config, LocalBackend(config, Weights(model), engine), rollouts, folder, clock=lambda: 0.0)
    asyncio.run(trainer.train(log.append))
    return log


def logprobs(model, trace):
    """Log-probs of the sampled tokens, one dialogue at a time."""
    ids, mask = torch.tensor([trace.token_ids]), torch.tensor(trace.loss_mask[1:], dtype=torch.bool)
    return torch.log_softmax(model(ids).logits[0, :-1].float(), -1).gather(1, ids[0, 1:, None])[mask, 0]


def sampled_with(trace):
    """The log-probs of the sampled tokens in the rollout."""
    return torch.tensor(trace.logprobs)[torch.tensor(trace.loss_mask, dtype=torch.bool)]


class Noting(torch.optim.SGD):
    """Moves nothing, and keeps the gradient of every step."""

    def __init__(self, model):
        super().__init__(model.parameters(), lr=0.0)
        self.gradients = []

    def step(self):
        self.gradients.append([p.grad.clone() for group in self.param_groups for p in group["params"]])


def assert_gradient(found, model):
    assert_close(found, [parameter.grad for parameter in model.parameters()], atol=1e-5, rtol=1e-3)


def assert_close(found, expected, atol=1e-6, rtol=1e-4):
    for mine, other in zip(found, expected, strict=True):
        assert torch.allclose(mine, other, atol=atol, rtol=rtol)


def about(metrics):
    return {name: pytest.approx(value, rel=1e-6, abs=1e-6) for name, value in metrics.items()}


def changed(model):
    """A copy with other weights."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.01)
    return other


def test_the_clip_stops_the_gradient_only_where_it_should():
    ratios = [1.5, 0.5, 1.5, 0.5, 1.25]
    logprobs = torch.tensor(ratios).log().requires_grad_()
    old, advantages = torch.zeros(5), torch.tensor([1.0, 1, -1, -1, 1])
    policy_loss(logprobs, old, advantages, 0.2, 0.28).sum().backward()
    assert [g != 0 for g in logprobs.grad.tolist()] == [False, True, True, False, True]
    assert is_clipped(logprobs, old, advantages, 0.2, 0.28).tolist() == [True, False, False, True, False]


def test_kl_estimates_agree_with_the_exact_divergence():
    torch.manual_seed(0)
    policy, reference = torch.randn(2, 50).mul(0.3).log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum()
    for estimator, tolerance in (("k3", 1e-6), ("k2", 0.01)):
        estimates = kl_estimate(policy, reference, estimator)
        assert float((policy.exp() * estimates).sum()) == pytest.approx(float(exact), abs=tolerance)


def test_episodes_or_tokens_count_the_same():
    lengths, episodes = torch.tensor([3, 1, 4]), torch.tensor([7, 2, 7])
    assert token_weights(lengths, episodes, "tokens").tolist() == [0.125] * 3
    weights = token_weights(lengths, episodes, "episodes")
    assert weights.tolist() == pytest.approx([1 / 14, 1 / 2, 1 / 14])
    assert float((weights * lengths).sum()) == pytest.approx(1)


@pytest.mark.parametrize("average_over", ["tokens", "episodes"])
@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_an_update_is_the_written_out_gradient(model, sequences, average_over, kl):
    config = TrainConfig(average_over=average_over, kl_coefficient=kl, max_grad_norm=1e9, microbatch_tokens=200)
    other, reference, losses = copy.deepcopy(model), changed(model), []
    for trace, advantage, _ in sequences:
        new, ref = logprobs(other, trace), logprobs(reference, trace)
        ratio = (new - sampled_with(trace)).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        divergence = (ref - new).exp() - 1 - (ref - new)
        losses.append(-surrogate + kl * divergence)
    means = losses if average_over == "episodes" else [torch.cat(losses)]
    loss = torch.stack([x.mean() for x in means]).mean()
    loss.backward()

    noting = Noting(model)
    metrics = update(config, model, reference if kl else None, [noting], sequences)
    assert metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert_gradient(noting.gradients[0], other)


@pytest.mark.parametrize("microbatch_tokens", [1, 400, 100_000])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_an_episode_of_two_seats_counts_as_one(model, sequences, minibatches, microbatch_tokens):
    """The gradient of each minibatch, written out as a sum over episodes, tokens of both seats together."""
    episodes = [0, 0, 1, 2, 3, 3]
    mixed = [sequence._replace(episode=n) for sequence, n in zip(sequences, episodes, strict=True)]
    config = TrainConfig(minibatches=minibatches, microbatch_tokens=microbatch_tokens, max_grad_norm=1e9)
    noting = Noting(model)
    update(config, model, None, [noting], mixed)
    assert len(noting.gradients) == minibatches
    for i, gradient in enumerate(noting.gradients):
        part = [n for n in sorted(set(episodes)) if n % minibatches == i]
        model.zero_grad()
        for number in part:
            seats = [s for s in mixed if s.episode == number]
            tokens = sum(sum(s.trace.loss_mask) for s in seats)
            for trace, advantage, _ in seats:
                ratio = (logprobs(model, trace) - sampled_with(trace)).exp()
                surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                (-surrogate.sum() / tokens / len(part)).backward()
        assert_gradient(gradient, model)


@pytest.mark.parametrize("advantage", ["group", "role"])
def test_a_seat_that_never_had_a_turn_is_not_trained_and_moves_no_baseline(model, sequences, advantage):
    """The other one lost by an illegal move before."""
    traces = [{"first": s.trace, "second": TokenTrace()} for s in sequences[:2]]
    rewards = [{"first": -1.0, "second": 1.0}, {"first": 0.5, "second": -0.5}]
    group = [Episode(str(i), "", "k", rewards=rewards[i], traces=traces[i]) for i in range(2)]
    config, state = TrainConfig(advantage=advantage, microbatch_tokens=1), {}
    trained = grpo.sequences(config, [group], state)
    assert [(s.trace, s.episode) for s in trained] == [(t["first"], i) for i, t in enumerate(traces)]
    assert set(state) == ({"k/first"} if advantage == "role" else set())
    update(config, model, None, [Noting(model)], trained)


@pytest.fixture
def long_prompts(tokenizer):
    """A model that shares prompts, and sequences: two groups with a prompt of 80 tokens, one sequence with another, and
    one with a short prompt."""
    larger = tiny_qwen(tokenizer, max_context_tokens=512, seed=0, layers=1, hidden_size=256).eval()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(len(tokenizer), size=n).tolist() for n in (80, 80, 80, 10)]
    made = []
    for i, prompt in enumerate([*[prompts[0]] * 4, *[prompts[1]] * 3, prompts[2], prompts[3]]):
        length = 20 + 7 * i
        rest = rng.integers(len(tokenizer), size=length).tolist()
        mask = [*[0] * len(prompt), *[int(t % 9 < 5) for t in range(length)]]
        trace = TokenTrace(prompt + rest, mask, [-math.log(len(tokenizer))] * len(mask))
        made.append(TrainedSequence(trace, i % 4 - 1.5, i))
    return larger, made


@pytest.mark.parametrize("microbatch_tokens", [None, 250])
def test_a_prompt_that_a_group_shares_is_computed_once_and_changes_no_gradient(long_prompts, microbatch_tokens):
    larger, trained = long_prompts
    reference, computed = changed(larger), counting(larger.get_decoder().layers[0])
    config = TrainConfig(kl_coefficient=0.3, max_grad_norm=1e9, microbatch_tokens=microbatch_tokens)
    noting, metrics, tokens = Noting(larger), [], []
    for least in (1, MIN_SHARED_TOKENS, 10**9):
        computed.clear()
        metrics.append(update(config, larger, reference, [noting], trained, shared_tokens=least))
        tokens.append(sum(computed))
    for i in range(2):
        assert metrics[i] == about(metrics[2])
        assert_close(noting.gradients[i], noting.gradients[2])
    assert tokens[0] == tokens[1] < tokens[2] * 0.75


def test_gradient_checkpointing_computes_layers_again_and_changes_no_gradient(long_prompts):
    larger, trained = long_prompts
    computed, noting = counting(larger.get_decoder().layers[0].input_layernorm), Noting(larger)
    again, once = (
        update(TrainConfig(max_grad_norm=1e9, gradient_checkpointing=on), larger, None, [noting], trained)
        for on in (True, False)
    )
    assert again == about(once)
    assert_close(*noting.gradients)
    assert computed[0] == computed[1] == 9 * max(len(s.trace.token_ids) for s in trained)  # all whole, twice
    assert not any(module.training for module in larger.modules())  # the engine's caches are used again
    with torch.no_grad():  # and its passes run no hook that marks embeddings for a gradient
        assert not larger.get_input_embeddings()(torch.tensor([0])).requires_grad


def test_tokens_that_were_not_sampled_are_not_trained(model, sequences):
    context_only = [
        TrainedSequence(TokenTrace(t.token_ids, [0] * len(t.token_ids), t.logprobs), 1.0, 1 + i)
        for i, (t, *_) in enumerate(sequences)
    ]
    noting = Noting(model)
    for trained in ([sequences[0], *context_only], sequences[:1]):
        update(TrainConfig(), model, None, [noting], trained)
    assert_close(*noting.gradients)


@pytest.mark.parametrize(("minutes", "expected"), [(0, [1, 2, 3, 4, 5]), (1.5, [0, 0, 3, 3, 5])])
def test_checkpoints_wait_for_minutes_and_the_last_one_does_not(model, renderer, tmp_path, minutes, expected):
    """Steps of half a minute."""
    saved, now = [], [0]

    def on_step(metrics):
        now[0] += 30
        saved.append(load_state(tmp_path / "state.pt")["run"]["step"] if (tmp_path / "state.pt").exists() else 0)

    engine, config = LocalEngine(model), TrainConfig(**{**SMALL, **QUICK, "steps": 5}, checkpoint_minutes=minutes)
    rollouts = Rollouts(mixture("kuhn"), seating(engine, renderer), 64)
    trainer = Trainer(
        config, LocalBackend(config, Weights(model), engine), rollouts, tmp_path, clock=lambda: float(now[0])
    )
    now[0] += 30
    asyncio.run(trainer.train(on_step))
    assert saved == expected


def test_muon_steps_as_torchs_does_but_for_its_bfloat16():
    drawn = torch.Generator().manual_seed(0)
    shapes = ((12, 40), (40, 12), (16, 16))
    ours, torchs = ([torch.nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    settings = {"lr": 0.1, "weight_decay": 0.5}
    optimizers = Muon(ours, **settings), torch.optim.Muon(torchs, adjust_lr_fn="match_rms_adamw", **settings)
    for _ in range(3):
        for mine, theirs in zip(ours, torchs, strict=True):
            mine.grad = theirs.grad = torch.randn(mine.shape, generator=drawn)
        for optimizer in optimizers:
            optimizer.step()
    for mine, theirs in zip(ours, torchs, strict=True):
        assert (mine - theirs).norm() < 0.01 * (mine - 1).norm()


def test_muon_is_for_matrices_of_layers_alone(model):
    muon, adamw = (
        {id(p) for group in optimizer.param_groups for p in group["params"]}
        for optimizer in muon_and_adamw(Weights(model), 1e-3, 0.0, (0.9, 0.95))
    )
    layers = {id(p) for p in model.get_decoder().layers.parameters() if p.ndim == 2}
    assert muon == layers and adamw == set(map(id, model.parameters())) - layers


def test_finished_episodes_are_not_played_again(model, renderer, tmp_path, killed, monkeypatch):
    options = {**QUICK, "steps": 3}
    with killed("checkpoint"):  # after the episodes of the second step
        run(copy.deepcopy(model), renderer, tmp_path, **options)
    played = []
    original = Seating.play

    async def counted(self, request):
        played.append(request.episode_id)
        return await original(self, request)

    monkeypatch.setattr(Seating, "play", counted)
    run(model, renderer, tmp_path, **options)
    assert {episode_id.split("/")[1] for episode_id in played} == {"2"}


def drops_all(group):
    return False


def drops_every_second(group):
    return int(group[0].game_id.rsplit("-", 1)[1]) % 2 == 0


def drops_some(group):
    return int(group[0].game_id.rsplit("-", 1)[1]) not in (0, 3)


def turns_taken(episodes, tasks):
    return [float(len(episode.turns)) for episode in episodes]


@pytest.mark.parametrize("paid", [None, "partner", "reward function"])
def test_a_step_plays_at_once_what_filters_will_drop_but_not_where_that_may_be_paid(
    paid, model, renderer, tmp_path, monkeypatch
):
    if paid == "reward function":
        judge = RewardConfig(function=f"{__name__}:turns_taken")
        judged = GAMES["kuhn"].parameters.model_copy(update={"reward_function": judge})
        monkeypatch.setitem(GAMES, "kuhn", GAMES["kuhn"]._replace(parameters=judged))
    log = run(model, renderer, tmp_path, paid=paid == "partner", filters=(f"{__name__}:drops_every_second",))
    steps = [tmp_path / "rollouts" / f"step-{step:05d}" for step in range(3)]
    rounds = [len(list(step.iterdir())) for step in steps]
    assert rounds[0] > 1
    assert (rounds[2] == 1) == (paid is None)
    for step, metrics in zip(steps, log, strict=True):  # those that are dropped are replaced
        assert metrics["groups_dropped"] in (1, 2) and len(read_frame(step)) >= 3 * (2 + metrics["groups_dropped"])


@pytest.mark.slow
def test_what_a_step_trains_on_does_not_depend_on_how_many_groups_it_plays_at_once(model, renderer, tmp_path):
    """A run that is paid for plays no group that may be needless, so it plays in rounds."""
    losses, weights = [], []
    for paid in (False, True):
        own, filters, folder = copy.deepcopy(model), (f"{__name__}:drops_some",), tmp_path / str(paid)
        log = run(own, renderer, folder, ("matching",), paid=paid, games_per_step=3, filters=filters)
        losses.append([metrics["loss"] for metrics in log])
        weights.append(own.parameters())
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert_close(*weights, atol=1e-4)


def test_a_step_without_anything_to_learn_from_ends_without_an_update_and_is_counted(model, renderer, tmp_path):
    before = [weight.clone() for weight in model.parameters()]
    log = run(model, renderer, tmp_path, steps=2, filters=(f"{__name__}:drops_all",))
    assert [metrics["updated"] for metrics in log] == [0, 0]
    assert [metrics["groups_dropped"] for metrics in log] == [4, 4] and "reward" in log[0] and "loss" not in log[0]
    assert all(map(torch.equal, model.parameters(), before))


def test_an_episode_that_fails_is_played_again_within_the_step_and_counted(model, renderer, tmp_path):
    failed = set()

    class FailsOnce:
        def __init__(self, engine):
            self.engine, self.max_context_tokens = engine, engine.max_context_tokens
            self.release = engine.release

        async def generate(self, input_ids, sampling):
            if sampling.session not in failed:
                failed.add(sampling.session)
                raise EngineFailed("RateLimitError: slow down")
            return await self.engine.generate(input_ids, sampling)

    options = dict(games=("matching",), wrap=FailsOnce, steps=1, filters=("no_failed_episode",))
    [metrics] = run(model, renderer, tmp_path, **options)
    assert metrics["failures"] == len(failed) == 6
    assert metrics["groups_dropped"] == 0
    frame = read_frame(tmp_path / "rollouts")
    assert len(frame) == 6 and "failed" not in set(frame["status"])


def test_several_games_are_trained_at_once_and_no_group_mixes_them(model, renderer, tmp_path):
    log = run(model, renderer, tmp_path, games=("matching", "kuhn"), games_per_step=3, steps=2)
    groups = {}
    for episode in read_episodes(tmp_path / "rollouts"):
        _, step, number, _ = episode.episode_id.split("/")
        groups.setdefault(int(number), []).append((episode.game, episode.game_id, int(step)))
    assert sorted(groups) == list(range(6))
    assert all(len(set(group)) == 1 and len(group) == 3 for group in groups.values())
    games = [groups[number][0][0] for number in range(6)]
    assert games.count("kuhn") == 4 and set(games[:3]) == set(games[3:]) == {"matching", "kuhn"}
    assert len({game_id for group in groups.values() for _, game_id, _ in group}) == 6
    for metrics in log:
        assert (metrics["env/kuhn/episodes"], metrics["env/matching/episodes"]) == (6, 3)
        assert -2 <= metrics["env/kuhn/reward"] <= 2 and "env/matching/reward" in metrics


def test_an_estimator_of_the_users_own_resumes_with_its_state(model, renderer, tmp_path, killed):
    options = dict(**QUICK, advantage="tests.training.estimators:later_tokens")
    whole, resumed = copy.deepcopy(model), copy.deepcopy(model)
    expected = run(whole, renderer, tmp_path / "whole", **options)
    assert [metrics["advantage/steps"] for metrics in expected] == [1, 2]
    with killed("checkpoint"):
        run(copy.deepcopy(model), renderer, tmp_path / "killed", **options)
    assert load_state(tmp_path / "killed/state.pt")["run"]["estimator"]["steps"] == 1
    assert run(resumed, renderer, tmp_path / "killed", **options) == expected
    assert same_weights(resumed, whole)


def test_each_token_is_trained_with_its_own_advantage(model, sequences):
    """The gradient written out: with the weights of the rollout no ratio is clipped."""
    trace = sequences[0].trace
    values = [0.5 * n - 1 for n in range(sum(trace.loss_mask))]

    def gradient(advantage):
        noting = Noting(model)
        update(TrainConfig(max_grad_norm=1e9), model, None, [noting], [TrainedSequence(trace, advantage, 0)])
        return noting.gradients[0]

    found, constant, alike = gradient(values), gradient(2.0), gradient([2.0] * len(values))
    model.zero_grad()
    (-(torch.tensor(values) * logprobs(model, trace)).mean()).backward()
    assert_gradient(found, model)
    assert all(torch.equal(one, other) for one, other in zip(constant, alike, strict=True))


# Several games


class Down(Game):
    """A game whose environment never answers."""

    seats, turn, rewards = ("agent", "partner"), "agent", None

    def __init__(self, game_id):
        self.game_id = game_id

    async def observe(self, seat):
        raise GameFailed("BadGateway: the environment is gone")

    async def step(self, message):
        raise AssertionError


@pytest.mark.slow
def test_a_game_that_is_down_ends_the_training_in_a_sentence_and_disturbs_no_other_until_then(
    engine, renderer, tmp_path, monkeypatch
):
    options = dict(steps=50, filters=("no_failed_episode",), games_per_step=3)
    up = run(copy.deepcopy(engine.model), renderer, tmp_path / "up", ("matching", "kuhn"), **{**options, "steps": 1})
    monkeypatch.setattr(type(GAMES["kuhn"].taskset), "load", lambda self, task: Down(task.game_id))
    log = []
    told = r"The game kuhn is down: .* last 10 groups .* BadGateway: the environment is gone"
    with pytest.raises(UserError, match=told):
        log = run(copy.deepcopy(engine.model), renderer, tmp_path / "down", ("matching", "kuhn"), **options)
    played = list(read_episodes(tmp_path / "down/rollouts"))
    first = {e.episode_id: e for e in played if e.game == "matching" and e.step == 0}
    for episode in read_episodes(tmp_path / "up/rollouts"):
        if episode.game == "matching":
            assert first[episode.episode_id].turns == episode.turns
            assert first[episode.episode_id].rewards == episode.rewards
    assert {e.status for e in played if e.game == "kuhn"} == {"failed"}
    assert not log and up


def test_an_episode_without_a_reward_is_left_out_of_its_group(engine, renderer):
    groups = [[], []]
    for number, reward in enumerate((1.0, None, 0.0)):
        trace = TokenTrace([1, 2], [0, 1], [0.0, -0.5])
        episode = Episode(f"e{number}", "g", "matching", rewards={} if reward is None else {"a": reward})
        episode.traces = {"a": trace}
        groups[0].append(episode)
        groups[1] += [] if reward is None else [episode]
    config = TrainConfig(samples_per_game=3)
    both = [[(s.advantage, s.trace) for s in grpo.sequences(config, [group], {})] for group in groups]
    assert both[0] == both[1] and len(both[0]) == 2
