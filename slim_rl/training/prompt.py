"""A prompt with which all sequences of a batch begin is computed once."""

from typing import Any

import torch


def following(decoder: Any, shared: torch.Tensor, ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """The last hidden states, (sequences, length, hidden size), of what follows `shared`.

    Args:
        decoder: of a model of transformers, without its head.
        shared: (1, tokens) int64, how all sequences begin; may be empty. Gradients flow through it.
        ids: (sequences, length) int64, the rest of each.
        arguments: more for the pass over `ids`, such as its positions; the keys of a mask begin with those of `shared`.
    """
    cache = None
    if shared.numel():
        cache = decoder(input_ids=shared, use_cache=True).past_key_values
        cache.batch_repeat_interleave(len(ids))
    rest = decoder(input_ids=ids, past_key_values=cache, use_cache=cache is not None, **arguments)
    return rest.last_hidden_state
