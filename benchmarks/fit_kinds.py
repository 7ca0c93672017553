"""Fits the classifier that sorts questions into kinds, and tells how well it carries over to other games.

    python -m benchmarks.fit_kinds [--write]

Fits to the labelled messages of the development games, to messages written to stand at places of these games,
and to written dialogues (tests/analysis/questions; GUIDELINE.md says how each came about; the games held out
are not read). Each development part is then sorted by a model fitted to neither it nor what was written for its
games. `--write` fits to all of it and writes slim_rl/analysis/kinds.npz.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from benchmarks.questions import LABELS, f1, read_labelled
from slim_rl.analysis.clauses import asking_clauses
from slim_rl.analysis.kinds import KINDS, WEIGHTS, Feature, Model, context, features
from slim_rl.analysis.questions import NAMES

PARTS = ("development", "development-2", "development-3", "development-4")
WRITTEN = LABELS / "written"
SEEN_AT_LEAST = 3
"""How often a feature occurs before it gets an embedding; in a person's question it counts PEOPLE times."""
MODELS, DIMENSIONS = 3, 16
PEOPLE = 3
"""How often a person's question counts for each that was written."""
EPOCHS, BATCH, LEARNING_RATE = 8, 32, 6e-3
DROPPED, ALONE = 0.5, 0.15
"""Chance in training of a feature to be left out, and of a message to be read without the turns before it."""


class Example(NamedTuple):
    in_dialogue: list[Feature]
    alone: list[Feature]
    """Read without the turns before it."""
    kind: int


def examples(messages: Iterable[dict]) -> Iterator[Example]:
    """Each question of labelled messages."""
    for message in messages:
        text, names = message["text"], NAMES(message["text"])
        before = context(message["turns"], NAMES)
        clauses = list(asking_clauses(text, NAMES))
        after = 0
        for question in message["questions"]:
            start = text.index(question["text"], after)
            end = after = start + len(question["text"])
            found = max(clauses, key=lambda c: min(c[1], end) - max(c[0], start), default=(0, 0))
            if min(found[1], end) > max(found[0], start):
                start, end = found
            yield Example(
                features(text, start, end, names, before),
                features(text, start, end, names, None),
                KINDS.index(question["kind"]),
            )


def fit(data: Sequence[Example]) -> Model:
    """The average of models that differ in their seed alone: side by side, they are one wider model."""
    counted = Counter(feature for example in data for feature in set(example.in_dialogue))
    known = sorted((feature for feature, times in counted.items() if times >= SEEN_AT_LEAST), key=str)
    fitted = [fit_one(data, known, seed) for seed in range(MODELS)]
    return Model(known, *(np.hstack(weights) for weights in zip(*fitted, strict=True)))


def fit_one(data: Sequence[Example], known: Sequence[Feature], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings and output weights, fitted by AdamW to the cross-entropy of `data`."""
    row = {feature: i for i, feature in enumerate(known)}
    rows = [[torch.tensor([row[f] for f in part if f in row]) for part in e[:2]] for e in data]
    kinds = torch.tensor([e.kind for e in data])
    torch.manual_seed(seed)
    embeddings = torch.nn.EmbeddingBag(len(row), DIMENSIONS, mode="sum")
    torch.nn.init.normal_(embeddings.weight, 0, 0.1)
    output = torch.nn.Linear(DIMENSIONS, len(KINDS), bias=False)
    weights = [embeddings.weight, output.weight]
    optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, weight_decay=0.01)
    batches = -(-len(data) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=EPOCHS * batches)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(data)).split(BATCH):
            read = []
            for i in batch:
                found = rows[i][int(torch.rand(()) < ALONE)]
                read.append(found[torch.rand(len(found)) >= DROPPED])
            lengths = torch.tensor([len(r) for r in read])
            sums = embeddings(torch.cat(read), lengths.cumsum(0) - lengths)
            hidden = torch.relu(sums * lengths.clamp(min=1).rsqrt()[:, None])
            loss = functional.cross_entropy(output(hidden), kinds[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return embeddings.weight.detach().numpy(), output.weight.detach().numpy()


def score(model: Model, data: Sequence[Example]) -> np.ndarray:
    """(kinds, 3): sorted rightly, sorted, and labelled so."""
    sums = np.zeros((len(KINDS), 3))
    for example in data:
        kind = KINDS.index(model.kind(example.in_dialogue))
        sums[kind, 0] += kind == example.kind
        sums[kind, 1] += 1
        sums[example.kind, 2] += 1
    return sums


def show(name: str, sums: np.ndarray) -> None:
    by_kind = [f1(*row) for row in sums]
    print(
        f"{name:66} {sums[:, 2].sum():5.0f} questions, {sums[:, 0].sum() / sums[:, 2].sum():.3f} right; F1 "
        + ", ".join(f"{kind} {value:.2f}" for kind, value in zip(KINDS, by_kind, strict=True))
        + f"; mean {np.nanmean(by_kind):.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the weights of the fit to everything")
    options = parser.parse_args()
    real = {part: list(examples(read_labelled(LABELS / f"{part}.jsonl"))) for part in PARTS}
    varied = {part: list(examples(read_labelled(WRITTEN / f"{part}.jsonl"))) for part in PARTS}
    dialogues = list(examples(read_labelled(WRITTEN / "dialogues.jsonl")))
    right = {
        name: np.zeros((len(KINDS), 3))
        for name in ("people's questions", "questions written for their games")
    }
    for part in PARTS:
        others = [e for p in PARTS if p != part for e in PEOPLE * real[p] + varied[p]]
        model = fit(others + dialogues)
        for name, data in zip(right, (real[part], varied[part]), strict=True):
            right[name] += score(model, data)
    for name, sums in right.items():
        show(f"{name}, clauses given, their part left out", sums)
    if options.write:
        everything = [e for p in PARTS for e in PEOPLE * real[p] + varied[p]] + dialogues
        fit(everything).save(WEIGHTS)
        show("all, fitted to the same", score(Model.load(WEIGHTS), everything))


if __name__ == "__main__":
    main()
