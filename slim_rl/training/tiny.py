"""The tiny Qwen3 that is made from scratch."""

import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM


def tiny_qwen(
    tokenizer: PreTrainedTokenizerBase,
    max_context_tokens: int,
    seed: int,
    layers: int = 3,
    hidden_size: int = 128,
    initializer_range: float = 0.05,
) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights; by default about 0.7 million parameters."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            intermediate_size=3 * hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=max_context_tokens,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            initializer_range=initializer_range,
            tie_word_embeddings=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    _embed_words(model, tokenizer)
    _look_back(model)
    return model


@torch.no_grad()
def _embed_words(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Initialise the embeddings of integers in numerical order, on a line and on circles of several periods, and give
    a word the same embedding with and without the space before it.

    With random ones a model this small would first have to learn the order of a hundred tokens, and each name twice.
    """
    vocabulary = tokenizer.get_vocab()
    numbers = {int(token): i for token, i in vocabulary.items() if token.isdecimal()}
    ids = torch.tensor([numbers[n] for n in sorted(numbers)], dtype=torch.long)
    x = torch.arange(len(ids)) / max(len(ids) - 1, 1)
    waves = [f(2 * torch.pi * x * k) for k in (0.5, 1, 2, 4, 8) for f in (torch.sin, torch.cos)]
    features = torch.stack([4 * (x - 0.5), *waves], dim=1)
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    weight = embeddings.weight
    weight[ids, : features.shape[1]] = features * weight.std() * 2
    for token, i in vocabulary.items():
        if token.startswith(" ") and token[1:] in vocabulary:
            weight[i] = weight[vocabulary[token[1:]]]


_LOOK_BACK = (1, 2, 3, 5)
"""Where the first layer's heads look, in tokens before. 5: from the end of the header of a turn to the last word before
it, and in an answer from the number to the first name."""


@torch.no_grad()
def _look_back(model: Qwen3ForCausalLM, sharpness: float = 2.0, bands: int = 4) -> None:
    """Let each head of the first layer begin with attention to one of the tokens before.

    Copying a number from a table needs such heads, and they form late in a model trained from scratch: Olsson et al.
    2022, arXiv 2209.11895, where building them in makes in-context copying come at once. Queries and keys are made
    constant, so that only the rotation by position (RoPE) tells tokens apart, and the query is turned back by so many
    places.

    Args:
        sharpness: of the attention, the weights of the norms of queries and keys.
        bands: number of rotation frequencies in use, the highest ones, which tell neighbours apart.
    """
    attention = model.get_decoder().layers[0].self_attn
    size = attention.head_dim
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    embeddings.weight[:, -1] = 4 * embeddings.weight.std()  # the constant that queries and keys are made from
    theta = 10_000.0 ** (-torch.arange(size // 2) * 2 / size)
    used = (torch.arange(size // 2) < bands).float()
    queries, keys = attention.q_proj.weight, attention.k_proj.weight
    queries.zero_()
    keys.zero_()
    for back, rows in zip(_LOOK_BACK, queries.split(size), strict=True):
        angle = back * theta
        rows[:, -1] = torch.cat([used * angle.cos(), -used * angle.sin()])
    for rows in keys.split(size):
        rows[:, -1] = torch.cat([used, 0 * used])
    attention.q_norm.weight.fill_(sharpness)
    attention.k_norm.weight.fill_(sharpness)
