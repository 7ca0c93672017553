"""A tiny Qwen3 made from nothing, taught to play by imitation.

Every demonstration is one tree: the path of turns with a closing branching off before each of them, all
in one sequence under a tree mask. That teaches closing after any number of turns without teaching how
many to take: that choice stands in the first token of a turn alone, and there the loss is weighted by
how often a demonstrator goes on or stops.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from slim_rl.config import WarmstartConfig
from slim_rl.games.game import Demonstration
from slim_rl.players.chat_format import ChatFormat
from slim_rl.training.checkpoint import load_state, save_state
from slim_rl.training.optimizer import muon_and_adamw


class Tree(NamedTuple):
    """One demonstration in tokens; numpy arrays of int64 but for the weights."""

    ids: np.ndarray
    """(tokens,): the path, then the branches."""
    positions: np.ndarray
    """(tokens,): place in the dialogue that the token stands in."""
    branches: np.ndarray
    """(tokens,): 0 on the path, another number on each branch."""
    forks: np.ndarray
    """(tokens,): how many tokens of the path a branch's token sees; 0 on the path itself."""
    predictors: np.ndarray
    """(targets,): index of the token whose output predicts the target."""
    targets: np.ndarray
    """(targets,): token ids."""
    weights: np.ndarray
    """(targets,) float32."""


def encode_tree(demonstration: Demonstration, chat_format: ChatFormat, stop_probability: float) -> Tree:
    """`stop_probability`: how often a demonstrator closes instead of taking one more turn."""
    path: list[int] = []
    learn: list[tuple[int, int, float]] = []  # predictor, target, weight
    closings: list[tuple[int, list[int], float]] = []  # fork, tokens, weight of the first
    for i, observation in enumerate(demonstration.observations):
        path += chat_format.continuation(observation) if i else chat_format.opening(observation)
        last, closing = i == len(demonstration.turns), demonstration.closings[i]
        stop = 1.0 if last else stop_probability if closing is not None else 0.0
        if closing is not None:
            closings.append((len(path), chat_format.turn(closing), stop))
        if not last:
            said = chat_format.turn(demonstration.turns[i])
            learn += _targets(len(path) - 1, len(path), said, 1 - stop)
            path += said

    ids, positions = list(path), list(range(len(path)))
    branches, forks = [0] * len(path), [0] * len(path)
    for number, (fork, closing, stop) in enumerate(closings, start=1):
        learn += _targets(fork - 1, len(ids), closing, stop)
        ids += closing
        positions += range(fork, fork + len(closing))
        branches += [number] * len(closing)
        forks += [fork] * len(closing)
    predictors, targets, weights = zip(*learn, strict=True)
    integers = (np.array(x) for x in (ids, positions, branches, forks, predictors, targets))
    return Tree(*integers, np.array(weights, dtype=np.float32))


def _targets(before: int, start: int, said: list[int], first_weight: float) -> list[tuple[int, int, float]]:
    """(predictor, target, weight) for each token of `said`, which stands at `start` and follows `before`."""
    predictors = [before, *range(start, start + len(said) - 1)]
    weights = [first_weight] + [1.0] * (len(said) - 1)
    return list(zip(predictors, said, weights, strict=True))


def imitation_loss(model: Qwen3ForCausalLM, trees: Sequence[Tree]) -> torch.Tensor:
    """Weighted mean cross-entropy over the targets of a batch of trees."""
    ids, positions, branches, forks = (
        torch.from_numpy(_pad([getattr(tree, name) for tree in trees], fill))
        for name, fill in (("ids", 0), ("positions", 0), ("branches", -1), ("forks", 0))
    )
    order = torch.arange(ids.shape[1])
    same_branch = (branches[:, :, None] == branches[:, None, :]) & (order[:, None] >= order)
    on_the_path = (branches == 0)[:, None, :] & (positions[:, None, :] < forks[:, :, None])
    hidden = model.get_decoder()(
        input_ids=ids,
        position_ids=positions,
        attention_mask=(same_branch | on_the_path)[:, None],
        use_cache=False,
    ).last_hidden_state
    rows = torch.from_numpy(np.repeat(np.arange(len(trees)), [len(tree.targets) for tree in trees]))
    predictors, targets, weights = (
        torch.from_numpy(np.concatenate([getattr(tree, name) for tree in trees]))
        for name in ("predictors", "targets", "weights")
    )
    logits = model.lm_head(hidden[rows, predictors])
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return (losses * weights).sum() / weights.sum()


def _pad(rows: list[np.ndarray], fill: int) -> np.ndarray:
    padded = np.full((len(rows), max(map(len, rows))), fill)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def tiny_qwen(
    tokenizer: PreTrainedTokenizerBase,
    max_context_tokens: int,
    seed: int,
    layers: int = 3,
    hidden_size: int = 128,
    initializer_range: float = 0.05,
) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights, of about 0.7 million parameters if nothing else is said."""
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
    _embed_numbers(model, tokenizer)
    return model


@torch.no_grad()
def _embed_numbers(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let the embeddings of integers start in numerical order: a line, and circles of several periods.

    From random ones a model this small would have to learn the order of a hundred tokens first.
    """
    numbers = {int(token): i for token, i in tokenizer.get_vocab().items() if token.isdecimal()}
    ids = torch.tensor([numbers[n] for n in sorted(numbers)])
    x = torch.arange(len(ids)) / max(len(ids) - 1, 1)
    waves = [f(2 * torch.pi * x * k) for k in (0.5, 1, 2, 4, 8) for f in (torch.sin, torch.cos)]
    features = torch.stack([4 * (x - 0.5), *waves], dim=1)
    weight = model.get_input_embeddings().weight
    weight[ids, : features.shape[1]] = features * weight.std() * 2


def imitate(
    config: WarmstartConfig, model: Qwen3ForCausalLM, batches: Callable[[int], Sequence[Tree]], folder: Path
) -> None:
    """Train `model` in place on `batches(step)`, going on from the state in `folder`."""
    steps = math.ceil(config.demonstrations / config.batch)
    # From random weights the model first has to find out which numbers belong to which pairs, and is stuck until
    # it has; with Muon it was stuck for fewer steps than with AdamW alone.
    optimizers = muon_and_adamw(model, config.learning_rate, config.weight_decay, betas=(0.9, 0.98))
    state = load_state(folder / "state.pt") or {"step": 0}
    if state["step"]:
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
    with tqdm(total=steps, initial=state["step"], desc="warm start", unit="step") as bar:
        for step in range(state["step"], steps):
            model.zero_grad()
            loss = imitation_loss(model, batches(step))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = config.learning_rate * _warmup_and_cosine(step, steps, config.warmup_steps)
                optimizer.step()
            bar.set_postfix_str(f"loss {loss.item():.3f}", refresh=False)
            bar.update()
            if (step + 1) % config.checkpoint_every == 0:
                saved = [optimizer.state_dict() for optimizer in optimizers]
                state = {"step": step + 1, "model": model.state_dict(), "optimizers": saved}
                save_state(folder / "state.pt", state)


def _warmup_and_cosine(step: int, steps: int, warmup_steps: int) -> float:
    return min(1.0, (step + 1) / max(warmup_steps, 1)) * (1 + math.cos(math.pi * step / steps)) / 2
