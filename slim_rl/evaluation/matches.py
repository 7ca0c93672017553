"""How a game with winners is evaluated: everybody against everybody, in both seats; and exactly, where that can be."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from slim_rl.engines.model import load_model
from slim_rl.evaluation.series import Evaluation, Series, policy
from slim_rl.games.game import Decision, SolvedKind
from slim_rl.players.chat_format import ChatFormat, qwen3_format


def match_series(
    run: Evaluation,
    held_out: Sequence[dict[str, Any]],
    checkpoints: Mapping[str, Path],
    snapshots: Mapping[str, Path],
) -> Iterator[Series]:
    """Every checkpoint and snapshot against every opponent that needs no model, and `evaluate.ranked` of them
    against each other. A pair plays each game twice, so that both sit in both seats."""
    config = run.config
    every = {**checkpoints, **snapshots}
    load = {name: partial(policy, config, path, held_out) for name, path in every.items()}
    ranked = {*checkpoints, *_spread(list(snapshots), config.evaluate.ranked)}
    pairs = [(name, opponent) for name in every for opponent in config.evaluate.opponents]
    pairs += [pair for pair in combinations(every, 2) if ranked.issuperset(pair)]
    pairs += combinations(config.evaluate.opponents, 2)
    for one, other in pairs:
        few = {one, other} & set(snapshots) or "trained" not in (one, other)
        games = held_out[: config.evaluate.snapshot_games] if few else held_out
        makers = {name: lambda name=name: load[name]().seat() for name in (one, other) if name in load}
        yield run.series(f"matches/{one}-against-{other}", games, (one, other), makers)
        yield run.series(f"matches/{other}-against-{one}", games, (other, one), makers)


def _spread(names: list[str], count: int) -> list[str]:
    """At most `count` of `names`, evenly spread, the last one among them."""
    step = max(1, -(-len(names) // count)) if count else len(names) + 1
    return names[::-1][::step]


def solve(
    kind: SolvedKind, checkpoints: Mapping[str, Path], thinking: bool, temperature: float
) -> dict[str, dict[str, float]]:
    """What each checkpoint is worth by computation, by name: see `SolvedKind.solve`.

    `illegal` is the largest probability, over all decisions, that it takes none of the turns that it may take;
    the others are scaled up for it.
    """
    found = {}
    for name, checkpoint in tqdm(checkpoints.items(), desc="exactly", unit="model"):
        model, tokenizer = load_model(checkpoint)
        chat_format = qwen3_format(tokenizer, thinking)
        decided = [option_probabilities(model, chat_format, d, temperature) for d in kind.decisions()]
        shares = [[p / sum(options) for p in options] for options in decided]
        found[name] = {**kind.solve(shares), "illegal": 1 - min(map(sum, decided))}
    return found


@torch.inference_mode()
def option_probabilities(
    model: PreTrainedModel, chat_format: ChatFormat, decision: Decision, temperature: float
) -> list[float]:
    """The probability that the model, sampled at `temperature`, takes each of the decision's options as its turn."""
    ids: list[int] = []
    for i, observation in enumerate(decision.observations):
        ids += chat_format.continuation(observation) if i else chat_format.opening(observation)
        if i < len(decision.turns):
            ids += chat_format.turn(decision.turns[i])
    probabilities = []
    for option in decision.options:
        said = chat_format.turn(option)
        logits = model(input_ids=torch.tensor([ids + said], device=model.device)).logits[0].float()
        logprobs = torch.log_softmax(logits[len(ids) - 1 : -1] / (temperature or 1e-6), dim=-1)
        chosen = logprobs.gather(1, torch.tensor(said, device=model.device)[:, None])
        probabilities.append(float(chosen.sum().exp()))
    return probabilities
