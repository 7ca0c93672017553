"""Activations against what torch keeps for the backward pass."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from slim_rl.training import memory
from slim_rl.training.memory import fitting_tokens

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
def test_a_pass_keeps_about_the_memory_that_it_may(make, checkpointing, monkeypatch):
    monkeypatch.setattr(memory, "ACTIVATIONS_GIGABYTES", 8e-3)
    model = make(6)
    if checkpointing:
        model.activation_checkpointing_enable()
    model.train(checkpointing)
    tokens = fitting_tokens(model.config, checkpointing=checkpointing)
    assert 20 < tokens < memory.MAX_TOKENS
    used = kept_bytes(model, tokens)
    if checkpointing:  # and one layer at a time is computed again
        used += kept_bytes(make(1), tokens)
    assert 0.7 * 8e6 < used < 1.3 * 8e6


def test_a_model_that_is_too_large_has_one_token_and_a_tiny_one_not_all():
    huge = LlamaConfig(vocab_size=10**6, hidden_size=2**17, intermediate_size=2**17, num_hidden_layers=1000)
    assert fitting_tokens(huge) == 1
    assert fitting_tokens(LlamaConfig(**SIZES)) == memory.MAX_TOKENS
    assert fitting_tokens(huge, layers=1) > 1
