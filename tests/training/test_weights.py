"""Precision and adapters: what is trained, what is sampled from, and what is saved."""

import asyncio
import contextlib
import copy
import itertools

import pytest
import torch

from slim_rl.core.errors import UserError
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import choose
from slim_rl.training.backend import LocalBackend, make_optimizers
from slim_rl.training.checkpoint import began_in
from slim_rl.training.config import LoraConfig, TrainConfig
from slim_rl.training.tiny import tiny_qwen
from slim_rl.training.update import update
from slim_rl.training.weights import Weights
from tests.training.short import local, train
from tests.training.test_grpo import QUICK, SMALL, logprobs

LORA = LoraConfig(rank=4)


@pytest.fixture
def model(tokenizer):
    return tiny_qwen(tokenizer, 512, seed=0, layers=2, hidden_size=64)


def trained(weights, sequences, **changes):
    """The metrics of an update."""
    config = TrainConfig(max_logprob_gap=100.0, learning_rate=1e-3, **changes)
    return asyncio.run(update(config, weights, make_optimizers(config, weights), sequences))


@pytest.mark.parametrize(("dtype", "close"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_narrow_types_take_nearly_the_step_of_fp32_and_lose_no_small_one(model, sequences, dtype, close):
    """A step of 1e-6 is lost in a weight of bf16, and must not be lost in a hundred of them."""
    narrow, start = copy.deepcopy(model), model.lm_head.weight.clone()
    wide, weights = Weights(model), Weights(narrow, dtype)
    assert narrow.dtype == dtype and all(w.dtype == torch.float32 for w in weights.trained.values())
    assert all(
        b.dtype == torch.float32 for b in narrow.buffers()
    )  # in bf16 the angles of later positions would be wrong
    one, other = trained(wide, sequences, max_grad_norm=1e9), trained(weights, sequences, max_grad_norm=1e9)
    assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=close)

    config = TrainConfig(learning_rate=1e-6, max_logprob_gap=100.0)
    optimizers = make_optimizers(config, weights)
    before = weights.trained["lm_head.weight"].clone()
    for _ in range(10):
        asyncio.run(update(config, weights, optimizers, sequences))
    moved = (weights.trained["lm_head.weight"] - before).abs().max()
    assert 5e-6 < float(moved.detach()) < 5e-5
    assert not torch.equal(start, before)


def no_memory_on_a_gpu(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def no_memory_on_a_processor(*_):
    torch.empty(10**15)


@pytest.mark.parametrize("fails", [no_memory_on_a_gpu, no_memory_on_a_processor])
def test_an_update_too_large_for_the_memory_is_told_in_a_sentence(model, sequences, fails):
    model.lm_head.register_forward_hook(fails)
    backend = LocalBackend(TrainConfig(), Weights(model), LocalEngine(model))
    with pytest.raises(UserError, match=r"fewer train\.microbatch_tokens or train\.gradient_checkpointing"):
        asyncio.run(backend.update(sequences, 1e-3))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
def test_fp16_neither_loses_small_gradients_nor_overflows(model, sequences, size):
    """Below 6e-8 a number of fp16 is 0, above 65,504 infinite; 65,536 times the largest of these gradients is 3e8."""
    weights, gradients = Weights(copy.deepcopy(model), torch.float16), []
    for one, name in ((Weights(model), "lm_head.weight"), (weights, "lm_head.weight")):
        loss = -size * logprobs(one.model, sequences[0].trace).sum()
        one.backward(loss)
        gradients.append(one.trained[name].grad)
    assert torch.allclose(*gradients, rtol=0.02, atol=0.002 * float(gradients[0].abs().max()))


@pytest.mark.parametrize("lora", [None, LORA])
def test_fp16_takes_the_step_of_fp32_with_its_layers_checkpointed(model, sequences, lora):
    norms = [
        trained(Weights(copy.deepcopy(model), dtype, lora), sequences, gradient_checkpointing=True)["grad_norm"]
        for dtype in (torch.float32, torch.float16)
    ]
    assert norms[1] == pytest.approx(norms[0], rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_adapters_alone_are_trained_and_the_sampler_has_them_merged(model, sequences, dtype):
    trace, base = sequences[0].trace, copy.deepcopy(model)
    weights = Weights(model, dtype, LORA, reference=True)
    assert all("lora" in name for name in weights.trained)
    before = logprobs(weights.model, trace)
    trained(weights, sequences, kl_coefficient=0.1)
    after = logprobs(weights.model, trace)
    close = 1e-4 if dtype == torch.float32 else 0.2
    assert not torch.allclose(before, after, atol=1e-3)
    assert torch.allclose(logprobs(weights.sampler, trace), after, atol=close)
    with weights.reference() as reference:
        assert torch.allclose(logprobs(reference, trace), before, atol=1e-5)
    assert set(weights.sampler.state_dict()) == set(base.state_dict())  # so it is saved as a plain checkpoint


def test_adapters_follow_the_seed(model):
    one, same, other = (Weights(copy.deepcopy(model), lora=LORA, seed=seed).state() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("targets", [("lm_head",), ("embed_tokens",), ("no_such",)])
def test_adapters_are_for_linear_layers_of_the_model_alone(model, targets):
    with pytest.raises(UserError, match=r"train\.lora\.targets"):
        Weights(model, lora=LoraConfig(targets=targets))


def test_muon_trains_adapters(model, sequences):
    trained(Weights(model, lora=LORA), sequences, optimizer="muon")


def test_a_model_can_be_trained_again(model, sequences):
    first = Weights(model, torch.bfloat16)
    trained(first, sequences)
    first.close()
    again = Weights(model, torch.bfloat16)
    before = model.lm_head.weight.clone()
    trained(again, sequences)
    assert not torch.equal(before, model.lm_head.weight)


@pytest.mark.parametrize("changes", [{"averaging_decay": 0.9}, {"lora": LORA, "kl_coefficient": 0.01}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_killed_run_goes_on_with_its_numbers(taught, tmp_path, dtype, changes):
    config = TrainConfig(**{**SMALL, **QUICK, "steps": 3, "max_logprob_gap": 5.0, **changes})

    def run(folder, stop=9):
        backend = local(config, copy.deepcopy(taught), dtype)

        steps = itertools.count(1)

        def on_step(metrics):
            if next(steps) == stop:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            train(config, backend, folder, on_step=on_step)
        return {n: w.clone() for n, w in backend.weights.sampler.state_dict().items()}

    run(tmp_path / "killed", stop=1)
    again, whole = run(tmp_path / "killed"), run(tmp_path / "whole")
    start = taught.state_dict()
    for name, weight in whole.items():
        assert torch.equal(weight, again[name]), name
    assert any(not torch.equal(weight, start[name].to(dtype)) for name, weight in whole.items())


def test_a_rollout_of_other_log_probs_stops_before_the_weights_change(model, sequences):
    with torch.no_grad():
        model.lm_head.weight.mul_(3)
    weights = Weights(model)
    before = {name: weight.clone() for name, weight in weights.state().items()}
    config = TrainConfig(max_logprob_gap=0.01)
    with pytest.raises(UserError, match="max_logprob_gap"):
        asyncio.run(update(config, weights, make_optimizers(config, weights), sequences))
    assert all(torch.equal(weight, before[name]) for name, weight in weights.state().items())


def test_truncated_importance_weights_are_capped(model, sequences):
    """Sampled ten times as unlikely as here, a token counts as often as the cap says, and no clip drops it."""
    trace = sequences[0].trace
    with torch.no_grad():
        here = logprobs(model, trace)
    old = iter((here - 2.3).tolist())
    trace = trace.__class__(trace.token_ids, trace.loss_mask, [next(old) if on else 0.0 for on in trace.loss_mask])
    norms = [
        trained(Weights(copy.deepcopy(model)), [sequences[0]._replace(trace=trace, advantage=1.0)], importance_cap=cap)
        for cap in (1.0, 3.0)
    ]
    assert norms[1]["grad_norm"] == pytest.approx(3 * norms[0]["grad_norm"], rel=1e-3)
    assert norms[0]["grad_norm"] > 0


@pytest.mark.parametrize(("has_bf16", "type_"), [(True, torch.bfloat16), (False, torch.float16)])
def test_a_gpu_computes_in_the_narrow_type_that_it_has(model, monkeypatch, has_bf16, type_):
    for name, value in (("is_available", True), ("get_device_name", "a card"), ("is_bf16_supported", has_bf16)):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda value=value, **_: value)
    assert choose("auto", model.config)[0] == type_


@pytest.mark.parametrize(
    ("times_as_fast", "type_"), [(4.5, torch.bfloat16), (1.2, torch.float32), (0.5, torch.float32)]
)
def test_a_processor_computes_in_bf16_where_that_pays(model, monkeypatch, times_as_fast, type_):
    """Half as fast was a processor with AVX-512 and bf16, but without AMX."""
    seconds = {torch.float32: 1.0, torch.bfloat16: 1 / times_as_fast}
    monkeypatch.setattr("slim_rl.engines.model._product_seconds", lambda dtype, size: seconds[dtype])
    dtype, why = choose("auto", model.config)
    assert dtype == type_ and f"{times_as_fast} times as fast" in why


def test_a_training_that_goes_on_elsewhere_computes_as_it_began(model, monkeypatch, tmp_path):
    for bf16_seconds, words in ((0.2, "5.0 times as fast"), (2.0, "bf16, in which this training began")):
        seconds = {torch.float32: 1.0, torch.bfloat16: bf16_seconds}
        monkeypatch.setattr("slim_rl.engines.model._product_seconds", lambda dtype, size, s=seconds: s[dtype])
        dtype, why = began_in(tmp_path, "auto", model.config)
        assert dtype == torch.bfloat16 and words in why
    assert began_in(tmp_path, "fp32", model.config)[0] == torch.float32
