"""How many tokens a pass through a model may have, so that what is kept for the backward pass fits in memory."""

from transformers import PreTrainedConfig

ACTIVATIONS_GIGABYTES = 3
"""Of a forward and backward pass. Fixed, because another number of tokens changes the last digits of the weights."""
MAX_TOKENS = 2048
"""More only adds padding: sequences of unlike lengths are in one pass."""


def fitting_tokens(config: PreTrainedConfig, layers: int | None = None, checkpointing: bool = False) -> int:
    """Padded tokens whose activations in fp32 need about `ACTIVATIONS_GIGABYTES`; at most `MAX_TOKENS`, at least 1.

    Counted on Llama and Qwen3 in transformers 5.23: a layer keeps 12 numbers for each hidden unit of a token and 4 for
    each unit of its MLP. The head works on 4 numbers for each entry of the vocabulary, for half of the tokens.

    Args:
        layers: number of last layers that are trained; those below keep nothing. None for all.
        checkpointing: with gradient checkpointing a layer keeps its input, and one layer at a time all.
    """
    layer, layers = 12 * config.hidden_size + 4 * config.intermediate_size, layers or config.num_hidden_layers
    kept = layers * config.hidden_size + layer if checkpointing else layers * layer
    bytes_per_token = 4 * (kept + 2 * config.vocab_size)
    return min(max(int(ACTIVATIONS_GIGABYTES * 1e9) // bytes_per_token, 1), MAX_TOKENS)
