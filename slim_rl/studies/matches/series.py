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
from slim_rl.games import game_kind
from slim_rl.games.game import Decision, SolvedKind
from slim_rl.players.chat_format import ChatFormat, qwen3_format


def match_series(
    run: Evaluation,
    held_out: Sequence[dict[str, Any]],
    checkpoints: Mapping[str, Path],
    snapshots: Mapping[str, Path],
) -> Iterator[Series]:
    """Every checkpoint and snapshot against every opponent that needs no model, and `evaluate.ranked` of them
    against each other. A pair plays each game twice, so that both sit in both seats.

    Models do not meet each other at temperature 0, where they would play one game over and over, nor in
    `evaluate.server`, which holds one of them at a time.
    """
    config = run.config
    opponents = config.evaluate.opponents or game_kind(config).opponents
    every = {**checkpoints, **snapshots}
    load = {name: partial(policy, config, path, held_out) for name, path in every.items()}
    ranked = {*checkpoints, *_spread(list(snapshots), config.evaluate.ranked)}
    pairs = [(name, opponent) for name in every for opponent in opponents]
    if config.evaluate.temperature and not config.evaluate.server:
        pairs += [pair for pair in combinations(every, 2) if ranked.issuperset(pair)]
    pairs += combinations(opponents, 2)
    for one, other in pairs:
        few = {one, other} & set(snapshots) or "trained" not in (one, other)
        games = held_out[: config.evaluate.snapshot_games] if few else held_out
        makers = {name: lambda name=name: load[name]().seat() for name in (one, other) if name in load}
        yield run.series(f"matches/{one}-against-{other}", games, (one, other), makers)
        yield run.series(f"matches/{other}-against-{one}", games, (other, one), makers)


def _spread(names: list[str], count: int) -> list[str]:
    """At most `count` of `names`, evenly spread, the last one among them."""
    if not count:
        return []
    return names[::-1][:: max(1, -(-len(names) // count))]


def solve(
    kind: SolvedKind, checkpoints: Mapping[str, Path], thinking: bool, temperature: float
) -> dict[str, dict[str, float]]:
    """What each checkpoint is worth by computation, by name: see `SolvedKind.solve`.

    `other` is the largest probability, over all decisions, that it says something else than one of the turns
    that it may take, word for word; these are scaled up for it.
    """
    found = {}
    for name, checkpoint in tqdm(checkpoints.items(), desc="exactly", unit="model"):
        model, tokenizer = load_model(checkpoint)
        chat_format = qwen3_format(tokenizer, thinking)
        decided = [option_logprobs(model, chat_format, d, temperature) for d in kind.decisions()]
        shares = [torch.softmax(options, dim=0).tolist() for options in decided]
        other = 1 - min(float(options.exp().sum()) for options in decided)
        found[name] = {**kind.solve(shares), "other": max(other, 0.0)}
    return found


@torch.inference_mode()
def option_logprobs(
    model: PreTrainedModel, chat_format: ChatFormat, decision: Decision, temperature: float
) -> torch.Tensor:
    """Log-probability that the model, sampled at `temperature`, says each of the decision's options, (options,)
    float64."""
    ids: list[int] = []
    for i, observation in enumerate(decision.observations):
        ids += chat_format.continuation(observation) if i else chat_format.opening(observation)
        if i < len(decision.turns):
            ids += chat_format.turn(decision.turns[i])
    found = []
    for option in decision.options:
        said = chat_format.turn(option)
        logits = model(input_ids=torch.tensor([ids + said], device=model.device)).logits[0].double()
        logprobs = torch.log_softmax(logits[len(ids) - 1 : -1] / (temperature or 1e-6), dim=-1)
        chosen = logprobs.gather(1, torch.tensor(said, device=model.device)[:, None])
        found.append(chosen.sum().cpu())
    return torch.stack(found)
