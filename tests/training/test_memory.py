"""What fits in memory: activations against what torch keeps for the backward pass, models against what is free."""

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from slim_rl.core.errors import UserError
from slim_rl.training import memory
from slim_rl.training.config import TrainConfig
from slim_rl.training.memory import check_trainable, fitting_tokens, free_bytes

SIZES = dict(vocab_size=64, hidden_size=64, intermediate_size=192, num_attention_heads=2, num_key_value_heads=1)


def kept_bytes(model, tokens):
    storages, weights = {}, {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.get_decoder()(input_ids=torch.zeros(2, tokens // 2, dtype=torch.long), use_cache=False)
    assert hidden.last_hidden_state.requires_grad
    return sum(size for size, _ in storages.values())


def llama(layers):
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=layers))


def qwen(layers):
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, num_hidden_layers=layers, head_dim=32))


@pytest.mark.parametrize("make", [llama, qwen])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_pass_keeps_about_the_memory_that_it_may(make, checkpointing):
    model = make(6)
    if checkpointing:
        model.activation_checkpointing_enable()
    model.train(checkpointing)
    tokens = fitting_tokens(model.config, checkpointing, gigabytes=8e-3)
    assert 20 < tokens < memory.MAX_TOKENS
    used = kept_bytes(model, tokens)
    if checkpointing:  # and one layer at a time is computed again
        used += kept_bytes(make(1), tokens)
    assert 0.7 * 8e6 < used < 1.3 * 8e6


def test_a_model_that_is_too_large_has_one_token_and_a_tiny_one_not_all():
    huge = LlamaConfig(vocab_size=10**6, hidden_size=2**17, intermediate_size=2**17, num_hidden_layers=1000)
    assert fitting_tokens(huge) == 1
    assert fitting_tokens(LlamaConfig(**SIZES)) == memory.MAX_TOKENS


SMOLLM2 = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                      num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True)  # fmt: skip


def fits(free, config=None, **options):
    try:
        check_trainable("it", SMOLLM2, config, free=int(free), **options)
    except UserError:
        return False
    return True


@pytest.mark.parametrize(
    ("changes", "bytes_a_parameter", "gigabytes"),
    [
        ({}, 16, 3.0),
        ({"microbatch_tokens": 512}, 16, 2.4 * 1.0035),
        ({"microbatch_tokens": 2048}, 16, 2.4 * 4 * 1.0035),
        ({"kl_coefficient": 0.1}, 20, 3.0),
        ({"averaging_decay": 0.9, "optimizer": "muon"}, 20, 3.0),
        ({"lora": {"rank": 8}}, 8, 3.0),
    ],
)
def test_a_model_takes_some_bytes_a_parameter_and_its_activations(changes, bytes_a_parameter, gigabytes):
    needed, config = bytes_a_parameter * 134_515_008 + gigabytes * 1e9, TrainConfig(**changes)
    assert fits(1.01 * needed, config) and not fits(0.99 * needed, config)


def test_a_warm_start_counts_no_activations():
    assert fits(16 * 134_515_008) and not fits(16 * 134_515_008 - 1)


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/job/step\n", {"memory.max": "max", "job/memory.max": "7000", "job/step/memory.max": "max"}, [7000]),
        ("0::/\n", {"memory.max": "5000"}, [5000]),
        ("5:cpu:/a\n4:memory:/docker/x\n0::/\n", {"memory/memory.limit_in_bytes": "6000"}, [6000]),
        ("0::/\n", {}, []),
    ],
)
def test_limits_of_control_groups(groups, limits, expected, tmp_path, monkeypatch):
    available = psutil.virtual_memory()  # it changes from call to call
    monkeypatch.setattr(psutil, "virtual_memory", lambda: available)
    (tmp_path / "groups").write_text(groups)
    for name, limit in limits.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(f"{limit}\n")
    assert min([*expected, free_bytes()]) == free_bytes(tmp_path / "groups", tmp_path / "sys")
