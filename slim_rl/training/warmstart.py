"""Play taught by imitation: to a tiny Qwen3 made from scratch, or to a checkpoint.

Every demonstration is one tree: the path of turns, with a closing that branches off before each of them, all
in one sequence under a tree mask. That teaches how to close after any number of turns without teaching how
many to take. The choice between them is made in the first token in which a turn and a closing differ. The loss
up to that token is weighted by the probability that a demonstrator goes on or stops.
"""

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from slim_rl.core.errors import UserError
from slim_rl.core.game import Demonstration
from slim_rl.engines.local import MIN_SHARED_TOKENS
from slim_rl.games import NamedGame, policy_seats
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.tasks import draw
from slim_rl.runtime.team import ALONE, Team
from slim_rl.training.checkpoint import load_state, save_state
from slim_rl.training.config import WarmstartConfig
from slim_rl.training.memory import fitting_tokens
from slim_rl.training.optimizer import muon_and_adamw, restore, set_learning_rate
from slim_rl.training.prompt import following


class Demonstrations:
    """What a model imitates: demonstrations of several games, in the ratio of their weights.

    Args:
        last_seat: this number of first demonstrations show the last of the policy's seats. They are of the last tasks,
            because a game's tasks may come in lessons for the first seat. After them, and in `alternating`, the seats
            take turns.

    Raises:
        UserError: a game does not demonstrate.
    """

    def __init__(self, games: Mapping[str, NamedGame], count: int, last_seat: int):
        weights = {name: game.parameters.weight for name, game in games.items()}
        self._games, self._last_seat = games, last_seat
        drawn = list(islice(draw(weights), count))
        self._drawn = drawn[count - last_seat :] + drawn[: count - last_seat]
        counts = Counter(name for name, _ in drawn)
        self._tasks = {name: list(game.taskset.tasks("demonstrations", counts[name])) for name, game in games.items()}

    def __len__(self) -> int:
        return len(self._drawn)

    def __getitem__(self, number: int) -> Demonstration:
        name, place = self._drawn[number]
        return self._show(name, place, -1 if number < self._last_seat else place)

    def alternating(self, count: int) -> list[Demonstration]:
        """`count` tasks evenly over all of them, because demonstrations may come in lessons; shown by the policy's seats in
        turn."""
        count = min(count, len(self))
        chosen = [self._drawn[number * len(self) // count] for number in range(count)]
        turns = {name: itertools.count() for name in self._games}
        return [self._show(name, place, next(turns[name])) for name, place in chosen]

    @property
    def words(self) -> list[str]:
        """Where a tokenizer for these games should cut; empty if one of them has no such places."""
        words = [taskset.words for taskset in (game.taskset for game in self._games.values())]
        return list(dict.fromkeys(word for of_one in words for word in of_one)) if all(words) else []

    def _show(self, name: str, place: int, seat: int) -> Demonstration:
        seats = policy_seats(self._games[name])
        shown = self._games[name].taskset.demonstrate(self._tasks[name][place], seats[seat % len(seats)])
        if shown is None:
            raise UserError(
                f"The game {name} has no demonstrations, so model.base cannot be tiny. Name a checkpoint there, "
                "without warmstart.checkpoint."
            )
        return shown


_LEARNING_RATE, _LEARNING_RATE_PRETRAINED = 2.5e-3, 3e-4
_LEAST_LENGTH = 0.8
"""No tree of a checkpoint's pass is shorter than this share of the longest one, so little of it is padding."""
_MEASURABLE = 16
"""Closings after a number of turns; the share of fewer is not measured."""


class Tree(NamedTuple):
    """One demonstration in tokens; numpy arrays of int64 but for the weights."""

    ids: np.ndarray
    """(tokens,): the path, then the branches."""
    positions: np.ndarray
    """(tokens,): the token's position in its dialogue."""
    branches: np.ndarray
    """(tokens,): 0 on the path, another number on each branch."""
    forks: np.ndarray
    """(tokens,): number of tokens of the path that a branch's token attends to; 0 on the path itself."""
    predictors: np.ndarray
    """(targets,): index of the token whose output predicts the target."""
    targets: np.ndarray
    """(targets,): token ids."""
    weights: np.ndarray
    """(targets,) float32."""


class HeldOut(NamedTuple):
    """A demonstration to measure on."""

    turns: list[int]
    """Before each of its closings."""
    tree: Tree


def hold_out(demonstration: Demonstration, renderer: Renderer, stop_probability: float) -> HeldOut:
    turns = [k for k, closing in enumerate(demonstration.closings) if closing is not None]
    return HeldOut(turns, encode_tree(demonstration, renderer, stop_probability))


def encode_tree(demonstration: Demonstration, renderer: Renderer, stop_probability: float) -> Tree:
    """A demonstration in tokens.

    Args:
        stop_probability: that a demonstrator closes instead of taking one more turn, where `demonstration` leaves it
            open.
    """
    path: list[int] = []
    learn: list[tuple[int, int, float]] = []  # predictor, target, weight
    closings: list[tuple[int, list[int], int, float]] = []  # fork, tokens, how many of them choose, their weight
    may_stop = any(closing is not None for closing in demonstration.closings[:-1])
    for i in range(len(demonstration.observations)):
        read = demonstration.read(i)
        path += renderer.continuation(read) if i else renderer.opening(read, demonstration.tools)
        last, closing = i == len(demonstration.turns), demonstration.closings[i]
        chosen = _alike(renderer, demonstration, i) + 1
        stop = 0.0 if closing is None else stop_probability if may_stop else 1.0
        if demonstration.stopping:
            stop = demonstration.stopping[i]
            if last and stop < 1:  # it could have gone on, and nothing shows how
                stop = 0.0
        if closing is not None:
            closings.append((len(path), renderer.turn(closing), chosen, stop))
        if not last:
            said = renderer.turn(demonstration.turns[i])
            learn += _targets(len(path) - 1, len(path), said, chosen, 1 - stop)
            path += said

    ids, positions = list(path), list(range(len(path)))
    branches, forks = [0] * len(path), [0] * len(path)
    for number, (fork, said, chosen, stop) in enumerate(closings, start=1):
        learn += _targets(fork - 1, len(ids), said, chosen, stop)
        ids += said
        positions += range(fork, fork + len(said))
        branches += [number] * len(said)
        forks += [fork] * len(said)
    predictors, targets, weights = map(np.array, zip(*learn, strict=True))
    context = np.array([ids, positions, branches, forks])
    return Tree(context[0], context[1], context[2], context[3], predictors, targets, weights.astype(np.float32))


def _alike(renderer: Renderer, demonstration: Demonstration, i: int) -> int:
    """Number of tokens with which both closing i and a turn in its place begin."""
    closing, turns = demonstration.closings[i], demonstration.turns
    if closing is None or not turns:
        return 0
    both = zip(renderer.turn(closing), renderer.turn(turns[min(i, len(turns) - 1)]), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))


def _targets(
    before: int, start: int, said: list[int], chosen: int, choice_weight: float
) -> list[tuple[int, int, float]]:
    """(predictor, target, weight) for each token of `said`, which begins at index `start` and follows `before`; its
    first `chosen` tokens have the weight of the choice."""
    predictors = [before, *range(start, start + len(said) - 1)]
    weights = [choice_weight if n < chosen else 1.0 for n in range(len(said))]
    return list(zip(predictors, said, weights, strict=True))


def imitation_loss(model: PreTrainedModel, trees: Sequence[Tree]) -> torch.Tensor:
    """Weighted mean cross-entropy over the targets of a batch of trees."""
    logits, targets, weights = _predict(model, trees)
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return (losses * weights).sum() / weights.sum()


def _predict(model: PreTrainedModel, trees: Sequence[Tree]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits (targets, vocabulary), token ids and weights (targets,) of the targets of all trees, one after another."""
    ids, positions, branches, forks = (
        torch.from_numpy(_pad([getattr(tree, name) for tree in trees], fill)).to(model.device)
        for name, fill in (("ids", 0), ("positions", 0), ("branches", -1), ("forks", 0))
    )
    order = torch.arange(ids.shape[1], device=model.device)
    same_branch = (branches[:, :, None] == branches[:, None, :]) & (order[:, None] >= order)
    on_the_path = (branches == 0)[:, None, :] & (positions[:, None, :] < forks[:, :, None])
    shared = _alike_tokens(trees)
    hidden = following(
        model.get_decoder(),
        ids[:1, :shared],
        ids[:, shared:],
        position_ids=positions[:, shared:],
        attention_mask=(same_branch | on_the_path)[:, None, shared:],
    )
    rows = torch.from_numpy(np.repeat(np.arange(len(trees)), [len(tree.targets) for tree in trees]))
    predictors, targets, weights = (
        torch.from_numpy(np.concatenate([getattr(tree, name) for tree in trees])).to(model.device)
        for name in ("predictors", "targets", "weights")
    )
    return model.lm_head(hidden[rows, predictors - shared]), targets, weights


def _alike_tokens(trees: Sequence[Tree]) -> int:
    """Number of tokens with which all trees begin and that predict no target; 0 if they are few."""
    least = min(int(tree.predictors.min()) for tree in trees)
    beginnings = np.array([tree.ids[:least] for tree in trees])
    alike = int((beginnings == beginnings[0]).all(axis=0).cumprod().sum())
    return alike if len(trees) > 1 and alike >= MIN_SHARED_TOKENS else 0


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

    Who is to find "BLEU" and "Ava" beside a number needs such heads, and a model trained from nothing waits long for
    them: Olsson et al. 2022, arXiv 2209.11895, where building them in makes in-context copying come at once. Queries
    and keys are made constant, so that only the rotation by position (RoPE) tells tokens apart, and the query is
    turned back by so many places.

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


async def imitate(
    config: WarmstartConfig,
    model: PreTrainedModel,
    batches: Callable[[int], Sequence[Tree]],
    folder: Path,
    held_out: Sequence[HeldOut] | None = None,
    team: Team = ALONE,
) -> list[dict[str, float]]:
    """Train `model` in place, going on from the state in `folder`.

    Args:
        batches: this process's share of the trees of a step.
        held_out: for a pretrained model, which AdamW trains. It is measured on them, and stops early if `config.stop_at`
            says so. None for the tiny model.
        team: adds up the gradients and shares the measurements.

    Returns:
        Each measurement as the columns `step` and `right_after_K`, see `right_closings`; none for the tiny model.
    """
    steps = math.ceil(config.demonstrations / config.batch)
    optimizers = _optimizers(config, model, pretrained=held_out is not None)
    state = load_state(folder / "state.pt") or {"step": 0}
    if state["step"]:
        restore(state, model, optimizers)
    measured: list[dict[str, float]] = state.get("measured", [])
    least_length = _LEAST_LENGTH if held_out is not None else 0.0  # few tokens of the tiny model's lessons are padding
    with tqdm(total=steps, initial=state["step"], desc="warm start", unit="step", disable=not team.leads) as bar:
        for step in range(state["step"], steps + 1):
            if held_out is not None and (step % config.measure_every == 0 or step == steps):
                measured = [
                    *(row for row in measured if row["step"] < step),
                    await _measure(model, held_out, step, team),
                ]
                if team.leads:
                    bar.write(", ".join(f"{name} {value:.3g}" for name, value in measured[-1].items()))
                if config.stop_at and min(_shares(measured[-1]), default=0) >= config.stop_at:
                    break
            if step == steps:
                break
            model.zero_grad()
            loss = await _backward(model, batches(step), fitting_tokens(model.config), least_length, team)
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            warmed_up = min(1.0, (step + 1) / max(config.warmup_steps, 1))
            cosine = 1 + math.cos(math.pi * step / steps)
            peak = config.learning_rate or (_LEARNING_RATE if held_out is None else _LEARNING_RATE_PRETRAINED)
            set_learning_rate(optimizers, peak * (warmed_up * cosine / 2))
            for optimizer in optimizers:
                optimizer.step()
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update()
            if (step + 1) % config.checkpoint_every == 0 and team.leads:
                saved = [optimizer.state_dict() for optimizer in optimizers]
                state = {"step": step + 1, "model": model.state_dict(), "optimizers": saved, "measured": measured}
                save_state(folder / "state.pt", state)
    return measured


def _optimizers(config: WarmstartConfig, model: PreTrainedModel, pretrained: bool) -> list[torch.optim.Optimizer]:
    betas = (0.9, 0.98)
    if pretrained:
        return [torch.optim.AdamW(model.parameters(), weight_decay=config.weight_decay, betas=betas)]
    # At first the model is stuck until it finds which numbers belong to which pairs. Muon gets there in fewer
    # steps than AdamW alone.
    return muon_and_adamw(model, _LEARNING_RATE, config.weight_decay, betas)


async def _backward(
    model: PreTrainedModel, trees: Sequence[Tree], max_tokens: int, least_length: float, team: Team
) -> float:
    """Add the gradient of `imitation_loss` over the trees of the whole team, in passes of at most `max_tokens` padded tokens
    (but at least one tree) each; returns the loss.

    Args:
        trees: this process's share.
        least_length: a pass has no tree shorter than this share of its longest one.
    """
    whole = torch.tensor([sum(float(tree.weights.sum()) for tree in trees)], dtype=torch.float32)
    team.add([whole])
    passes: list[list[Tree]] = [[]]
    for tree in sorted(trees, key=length, reverse=True):
        longest = length(passes[-1][0]) if passes[-1] else 0
        if (len(passes[-1]) + 1) * longest > max_tokens or length(tree) < least_length * longest:
            passes.append([])
        passes[-1].append(tree)
    total = torch.zeros(())
    for part in filter(None, passes):
        await asyncio.sleep(0)  # here Ctrl-C is heard
        loss = imitation_loss(model, part) * (sum(float(tree.weights.sum()) for tree in part) / float(whole))
        loss.backward()
        total += loss.detach().cpu()
    team.add_gradients(model)
    team.add([total])
    return float(total)


def length(tree: Tree) -> int:
    """In tokens."""
    return len(tree.ids)


async def _measure(model: PreTrainedModel, held_out: Sequence[HeldOut], step: int, team: Team) -> dict[str, float]:
    """The columns of a measurement; a number of turns after which few demonstrations close is left out."""
    found: dict[int, list[bool]] = {}
    for part in await team.gather(right_closings(model, team.share(held_out))):
        for k, right in part.items():
            found.setdefault(k, []).extend(right)
    shares = {f"right_after_{k}": sum(found[k]) / len(found[k]) for k in sorted(found) if len(found[k]) >= _MEASURABLE}
    return {"step": step, **shares}


def _shares(row: Mapping[str, float]) -> list[float]:
    return [value for name, value in row.items() if name != "step"]


@torch.no_grad()
def right_closings(model: PreTrainedModel, held_out: Sequence[HeldOut]) -> dict[int, list[bool]]:
    """By number of turns before it, whether `model` would say each closing of these demonstrations as it is shown.

    Every token must be the likeliest one after those before it, except those that choose to close where a demonstrator
    may go on.
    """
    found: dict[int, list[bool]] = {}
    for turns, tree in held_out:
        logits, targets, weights = _predict(model, [tree])
        right = (logits.argmax(dim=-1) == targets) | (weights < 1)
        sizes = np.bincount(tree.branches)[1:].tolist()  # the targets of closings come last, branch by branch
        for k, part in zip(turns, right[-sum(sizes) :].split(sizes), strict=True):
            found.setdefault(k, []).append(bool(part.all()))
    return found
