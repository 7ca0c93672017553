"""Training on a Tinker server, against a stand-in for its package in both of its shapes."""

import asyncio
import copy
import json
import sys
import threading
from concurrent.futures import CancelledError
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save as as_bytes

from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.engines.engine import EngineFailed, Sampling
from slim_rl.engines.model import load_model
from slim_rl.players.ledger import Ledger
from slim_rl.training.checkpoint import merge_adapter, save_model
from slim_rl.training.config import LoraConfig, TinkerConfig, TrainConfig
from slim_rl.training.tinker import TinkerBackend, TinkerServer
from slim_rl.training.update import update
from slim_rl.training.weights import Weights
from tests.settings import merged, setting, tiny
from tests.tinker_sdk import ALPHA, Server, StatusError
from tests.training.short import same_weights
from tests.training.short import train as train_kuhn
from tests.training.test_grpo import Noting, logprobs

PRICE = {"prompt": 0.2, "cached_prompt": 0.04, "completion": 0.6, "train": 0.5}
KEY = "tml-secret"
SMALL = dict(
    steps=2, games_per_step=2, samples_per_game=2, filters=(), learning_rate=1e-2,
    advantage="tests.training.estimators:alternating",
)  # fmt: skip


@pytest.fixture(params=["0.25", "0.38"])
def version(request):
    return request.param


@pytest.fixture
def installed(monkeypatch):
    """installed(server) is imported as `tinker`."""
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    return lambda server: monkeypatch.setitem(sys.modules, "tinker", server) or server


@pytest.fixture(scope="module")
def base(taught, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    save_model(folder, taught, setting("kuhn").tokenizer)
    return folder


def backend_of(base, train=TrainConfig(), ledger=None, folder=Path("none"), **tinker):  # noqa: B008
    options = {"base_model": "Tiny/Qwen3", "rank": 4, "seed": 3, "price": PRICE, **tinker}
    config = TinkerConfig(**options)
    return TinkerBackend(train, config, base, folder, 128, ledger or Ledger(None, config.price, "train"))


def train(base, folder, ledger=None, changes=(), **tinker):
    """The log of a run, and what trained it."""
    config = TrainConfig(**{**SMALL, **dict(changes)})
    backend = backend_of(base, config, ledger, folder, **tinker)
    return train_kuhn(config, backend, folder, paid=True), backend


@pytest.fixture(scope="module")
def whole(base, taught, tmp_path_factory):
    """The log and ledger of a run that nothing interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_API_KEY", KEY)
        patch.setitem(sys.modules, "tinker", Server(taught))
        log, backend = train(base, tmp_path_factory.mktemp("whole"))
    return log, backend.ledger


@pytest.mark.parametrize(
    ("loss_scale", "average_over", "kl"),
    [
        ("sum", "tokens", {}),
        ("mean", "episodes", {}),
        ("sum", "episodes", {"kl_coefficient": 0.3}),
        ("mean", "tokens", {"kl_coefficient": 0.3, "kl_estimator": "k2"}),
    ],
)
def test_the_gradient_is_that_of_the_local_backend(model, sequences, tmp_path, installed, loss_scale, average_over, kl):
    """For a policy that has left the base model. Two seats of an episode, clipped tokens, advantages for each token."""
    lora = LoraConfig(rank=4, alpha=ALPHA)
    weights = Weights(copy.deepcopy(model), lora=lora, seed=3)
    drawn = torch.Generator().manual_seed(0)
    weights.load({n: w + 0.05 * torch.randn(w.shape, generator=drawn) for n, w in weights.state().items()})
    trained = []
    for n, (trace, advantage, _) in enumerate(sequences):
        with torch.no_grad():
            new = logprobs(weights.model, trace)
        # Where KL is in the advantages, the policy must be the one that sampled.
        noise = torch.zeros(len(new)) if kl else 0.4 * torch.randn(len(new), generator=drawn)
        old = iter((new + noise).tolist())
        own = copy.deepcopy(trace)
        own.logprobs = [next(old) if sampled else 0.0 for sampled in own.loss_mask]
        gain = advantage if n % 2 else [advantage + 0.1 * t for t in range(len(new))]
        trained.append(sequences[n]._replace(trace=own, advantage=gain, episode=n // 2))
    config = TrainConfig(average_over=average_over, max_grad_norm=1e9, max_logprob_gap=10.0, **kl)
    noting = Noting(weights.model)
    noting.param_groups[0]["params"] = list(weights.trained.values())
    expected = asyncio.run(update(config, weights, [noting], trained))

    server = installed(Server(model, loss_scale=loss_scale))
    server.start = weights.state()
    backend = backend_of(tmp_path, config, loss_scale=loss_scale)

    async def follow():
        await backend.load(None)
        return await backend.update(trained, 1e-3)

    metrics = asyncio.run(follow())
    for name, gradient in zip(weights.trained, noting.gradients[0], strict=True):
        assert torch.allclose(server.gradients[0][name], gradient, atol=1e-5), name
    del expected["entropy"], metrics["entropy"]  # from the sampled tokens alone it is an estimate
    assert metrics == {name: pytest.approx(value, abs=1e-5) for name, value in expected.items()}
    assert metrics["clipped_fraction"] > 0 or kl


def test_a_run_trains_what_it_samples_and_leaves_a_checkpoint(base, taught, tmp_path, installed, version, whole):
    server = installed(Server(taught, version))
    log, backend = train(base, tmp_path)
    assert log == whole[0] and all(metrics["logprob_gap"] < 1e-4 and metrics["updated"] for metrics in log)
    asyncio.run(backend.export(tmp_path / "trained", setting("kuhn").tokenizer))
    merged_model, _ = load_model(tmp_path / "trained")
    last = list(server.samplers.values())[-1][0]
    ids = torch.tensor([list(range(20))])
    moved = (last(ids).logits - taught(ids).logits).abs().max()
    assert moved > 1e-2 and torch.allclose(merged_model(ids).logits, last(ids).logits, atol=1e-4)
    bill = backend.ledger.bill()
    dollars = bill["prompt_tokens"] * 0.2 + bill["completion_tokens"] * 0.6 + bill["trained_tokens"] * 0.5
    assert bill["dollars"] == pytest.approx(dollars / 1e6, abs=1e-6) and bill["trained_tokens"] > 0
    assert f"{bill['calls']} calls" in backend.ledger.status()


@pytest.mark.parametrize(("moment", "version"), [("checkpoint", "0.25"), ("rollout", "0.38")])
def test_a_killed_run_goes_on_with_its_numbers_and_pays_for_no_episode_twice(
    base, taught, tmp_path, installed, version, whole, killed, moment
):
    server, ledger = installed(Server(taught, version)), Ledger(tmp_path / "ledger.jsonl", None, "train")
    with killed(moment):
        train(base, tmp_path / "killed", ledger=ledger)
    log, backend = train(base, tmp_path / "killed", ledger=Ledger(tmp_path / "ledger.jsonl", None, "train"))
    assert log == whole[0]
    assert backend.ledger.totals["completion_tokens"] == whole[1].totals["completion_tokens"]
    again = moment == "checkpoint"  # the step whose state was not stored
    assert server.calls.count("optim_step") == 2 + again


def fail_with(error):
    def fail():
        raise error

    return fail


def hidden(error):
    """As 0.25 and 0.38 answer 402 to a new session: with a mistake of their own in the place where they handle it."""
    mistake = AttributeError("no attribute '_last_logged'")
    mistake.__context__ = error
    return mistake


ERRORS = [
    (StatusError(401, f"no such key: {KEY}"), UserError, "TINKER_API_KEY; set the right one"),
    (StatusError(402, "billing"), UserError, "no credit left"),
    (hidden(StatusError(402, "billing")), UserError, "no credit left"),
    (StatusError(403, "not yours"), UserError, "may not use Tiny/Qwen3"),
    (StatusError(422, "bad rank"), UserError, "tinker.rank"),
    (StatusError(500, f"broken for {KEY}"), EngineFailed, "broken"),
    (ConnectionError("gone"), EngineFailed, "gone"),
    (CancelledError(), EngineFailed, "[cC]ancelled"),
]


@pytest.mark.parametrize(("error", "kind", "words"), ERRORS)
def test_whose_fault_an_error_is(base, taught, installed, version, error, kind, words):
    """In an episode a server that fails costs the episode, in training the run, in a sentence."""
    server, backend = installed(Server(taught, version)), backend_of(base)

    async def sample():
        await backend.load(None)
        server.failures["sample"] = fail_with(error)
        await backend.generate([1, 2, 3], Sampling(4))

    with pytest.raises(kind, match=words) as raised:
        asyncio.run(sample())
    assert KEY not in str(raised.value) and raised.value.__cause__ is None
    unpaid = kind is UserError
    assert (
        backend.ledger.totals["completion_tokens"] == (0 if unpaid else 4) and not backend.ledger.totals["unanswered"]
    )
    server.failures = {"create_lora_training_client": fail_with(error)}
    with pytest.raises(UserError, match=words):
        asyncio.run(backend.load(None))


@pytest.mark.slow
def test_a_call_that_hangs_costs_its_episode_and_a_second_one_in_a_row_stops_the_run(base, taught, installed):
    server, over = installed(Server(taught)), threading.Event()
    backend = backend_of(base, deadline_seconds=4.0)

    async def sample(hangs):
        server.failures["sample"] = over.wait if hangs else lambda: None
        await backend.generate([1, 2], Sampling(4))

    async def in_turn():
        await backend.load(None)
        for kind in (EngineFailed, None, EngineFailed, UserError):
            with pytest.raises(kind, match="gave no answer in 4 s") if kind else nullcontext():
                await sample(hangs=bool(kind))

    asyncio.run(in_turn())
    over.set()


def test_a_failed_step_is_taken_again_from_the_last_state(base, taught, tmp_path, installed, whole):
    server = installed(Server(taught))

    def fail_in_the_second_step():
        if server.calls.count("optim_step") == 2:
            raise RuntimeError("poisoned")

    server.failures["optim_step"] = fail_in_the_second_step
    with pytest.raises(UserError, match=r"poisoned.*same command goes on from the last state"):
        train(base, tmp_path / "failed")
    assert train(base, tmp_path / "failed")[0] == whole[0]


def test_a_finished_training_is_exported_again_when_the_server_has_forgotten_it(base, taught, tmp_path, installed):
    """After a change of code, say, and a week."""
    server = installed(Server(taught))
    logs = []
    for folder in ("first", "again"):
        log, backend = train(base, tmp_path / "run")
        asyncio.run(backend.export(tmp_path / folder))
        logs.append(log)
        server.states.clear(), server.samplers.clear()
    assert logs[0] == logs[1] and server.calls.count("create_lora_training_client") == 1
    assert same_weights(*(load_model(tmp_path / folder)[0] for folder in ("first", "again")))
    with pytest.raises(UserError, match="A state is kept for 7 days"):
        train(base, tmp_path / "run", changes={"steps": 3})


def test_a_shorter_run_than_was_trained_already_is_refused_and_not_given_the_longer_ones_model(
    base, taught, tmp_path, installed
):
    installed(Server(taught))
    train(base, tmp_path)
    with pytest.raises(UserError, match=r"train.steps is 1, but the run in .* has taken 2 steps already"):
        train(base, tmp_path, changes={"steps": 1})


def test_the_budget_stops_a_run_before_it_is_exceeded_and_a_larger_one_goes_on(
    base, taught, tmp_path, installed, whole
):
    spent, path = whole[1].totals["dollars"], tmp_path / "ledger.jsonl"
    server = installed(Server(taught))
    for budget in (spent / 3, spent * 2 / 3):
        ledger = Ledger(path, whole[1].price, "train")
        with pytest.raises(UserError, match=r"tinker\.max_cost_dollars .* is reached.*raise it"):
            train(base, tmp_path / "run", ledger=ledger, max_cost_dollars=budget)
        assert 0 < ledger.totals["dollars"] <= budget
    log, backend = train(base, tmp_path / "run", ledger=Ledger(path, whole[1].price, "train"), max_cost_dollars=9)
    assert log == whole[0] and server.calls.count("optim_step") == 2
    assert backend.ledger.totals["trained_tokens"] == whole[1].totals["trained_tokens"]


def test_no_part_of_a_step_is_trained_that_the_budget_has_no_room_for(base, taught, tmp_path, installed):
    installed(Server(taught))
    _, backend = train(base, tmp_path / "whole", changes={"steps": 1})
    bill = backend.ledger.totals
    short = bill["dollars"] - 0.3 * bill["trained_tokens"] * PRICE["train"] / 1e6
    server = installed(Server(taught))
    with pytest.raises(UserError, match="max_cost_dollars"):
        train(base, tmp_path / "short", changes={"steps": 1, "minibatches": 2}, max_cost_dollars=short)
    assert "optim_step" not in server.calls


def test_other_log_probs_than_the_rollouts_end_the_training_before_its_step_is_kept(base, taught, tmp_path, installed):
    server = installed(Server(taught, shift=0.5))
    with pytest.raises(UserError, match=r"differ from the rollout's by 0\.5 .*max_logprob_gap"):
        train(base, tmp_path)
    assert not server.states and not (tmp_path / "state.pt").exists()


def test_a_seed_of_any_size_is_one_that_a_server_takes_and_what_the_api_cannot_sample_is_refused(
    base, taught, installed
):
    server = installed(Server(taught))
    backend = backend_of(base, seed=2**70 + 5)
    asyncio.run(backend.load(None))
    assert server.seed == 5
    for sampling in (Sampling(4, temperature=0.5), Sampling(4, forbidden_token_ids=(1,))):
        with pytest.raises(UserError, match="temperature 1 and cannot forbid tokens"):
            asyncio.run(backend.generate([1], sampling))
    assert "sample" not in server.calls


def matrices(layer, down=(1, 4), up=(1, 4)):
    """The adapter of a layer of the first block."""
    names = (f"base_model.model.model.layers.0.{layer}.lora_{x}.weight" for x in "AB")
    return {name: torch.ones(size) for name, size in zip(names, (down, up), strict=True)}


PAIRS, HEAD = {"r": 1, "lora_alpha": 32}, "base_model.model.model.embed_tokens.lora_embedding_A"


@pytest.mark.parametrize(
    ("settings", "weights", "words"),
    [
        (None, None, "no LoRA adapter"),
        ({}, {}, "no LoRA adapter"),
        (PAIRS, {"base_model.model.other.lora_A.weight": torch.ones(1, 4)}, "other.weight fits no weight"),
        (PAIRS, matrices("mlp.up_proj"), "up_proj.weight does not fit"),
        ({**PAIRS, "use_dora": True}, {}, "use_dora"),
        (PAIRS,
         {**matrices("self_attn.q_proj", (1, 128), (128, 1)), HEAD: torch.ones(1, 4)}, "embed_tokens.lora_embedding_A"),
    ],
)  # fmt: skip
def test_an_adapter_that_is_none_of_the_checkpoints_is_told(base, tmp_path, settings, weights, words):
    if settings is not None:
        (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
        (tmp_path / "adapter_model.safetensors").write_bytes(as_bytes(weights) if settings else b"")
    with pytest.raises(UserError, match=words):
        merge_adapter(base, tmp_path, tmp_path / "trained")
    assert not (tmp_path / "trained").exists()


HOSTED = {"games": {"kuhn": {"seating": ["policy", "policy"]}}, "model": {"base": "Qwen/Qwen3-8B"}}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"train": {"temperature": 0.7}}, "train.temperature other than 1"),
        ({"train": {"optimizer": "muon"}}, "train.optimizer: muon"),
        ({"train": {"averaging_decay": 0.9}}, "train.averaging_decay"),
        ({"train": {"lora": {"rank": 8}}}, "train.lora"),
        ({"train": {"importance_cap": 2}}, "train.importance_cap"),
        ({"train": {"gradient_checkpointing": True}}, "train.gradient_checkpointing"),
        ({"train": {"microbatch_tokens": 512}}, "train.microbatch_tokens"),
        ({"train": {"snapshot_every": 2}}, "train.snapshot_every"),
        ({"train": {"kl_coefficient": 0.1, "minibatches": 2}}, "train.kl_coefficient with several train.minibatches"),
        ({"games": {"kuhn": {"seating": ["policy", "checkpoint:old"]}}}, "a checkpoint in a seat"),
        ({"model": {"base": "tiny"}}, "name it in model.base"),
        ({"warmstart": {"checkpoint": True}}, "without warmstart.checkpoint"),
        ({"tinker": {"max_cost_dollars": 3}}, "tinker.max_cost_dollars needs tinker.price"),
    ],
)
def test_what_cannot_be_honoured_is_refused(changes, name):
    parameters = merged(HOSTED, {"train": {"backend": "tinker"}})
    Config.model_validate(parameters)
    with pytest.raises(ValueError, match=name):
        Config.model_validate(merged(parameters, changes))


def test_a_missing_package_or_key_and_a_model_that_the_server_does_not_have(taught, installed, monkeypatch):
    config = TinkerConfig(base_model="Tiny/Qwen3")
    server = installed(Server(taught))
    asyncio.run(TinkerServer(config).check())
    with pytest.raises(UserError, match=r"cannot train other, but Tiny/Qwen3; set tinker\.base_model"):
        asyncio.run(TinkerServer(TinkerConfig(base_model="other")).check())
    monkeypatch.setenv("TINKER_API_KEY", f"{KEY}\n{KEY}")
    with pytest.raises(UserError, match="TINKER_API_KEY holds a character that no key has"):
        TinkerServer(config)
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"TINKER_BASE_URL.*tinker\.base_url"):
        patch.setenv("TINKER_BASE_URL", "http://elsewhere")
        TinkerServer(config)
    monkeypatch.delenv("TINKER_API_KEY")
    with pytest.raises(UserError, match="set the environment variable TINKER_API_KEY"):
        TinkerServer(config)
    asyncio.run(TinkerServer(TinkerConfig(base_model="Tiny/Qwen3", base_url="http://own:8000")).check())
    assert server.api_key != KEY
    monkeypatch.setitem(sys.modules, "tinker", None)
    with pytest.raises(UserError, match="pip install tinker"):
        TinkerServer(config)


def test_the_stage_trains_on_a_server_and_shows_what_it_cost(base, taught, tmp_path, installed, monkeypatch, run_stage):
    monkeypatch.chdir(tmp_path)
    installed(Server(taught))
    Path("models").mkdir()
    Path("models/base").symlink_to(base)
    tinker = {"base_url": "http://own:8000", "base_model": "Tiny/Qwen3", "price": PRICE, "max_cost_dollars": 1}
    parameters = tiny("kuhn", train={"backend": "tinker"}, tinker=tinker, model={"context_tokens": 128})
    Path("params.yaml").write_text(yaml.safe_dump(parameters))
    for stage in ("games", "train", "train"):
        run_stage(stage)
    (bill,) = json.loads(Path("data/rollouts/bills.json").read_text()).values()
    assert bill["model"] == "Tiny/Qwen3" and bill["trained_tokens"] > 0 and 0 < bill["dollars"] < 1
    trained, _ = load_model("models/trained")
    assert not same_weights(trained, taught)
    assert KEY not in "".join(path.read_text(errors="ignore") for path in tmp_path.rglob("*") if path.is_file())
