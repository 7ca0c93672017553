"""The teacher of the small classifier of `slim_rl.analysis.kinds`: a pretrained sentence encoder, fitted to kinds."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

import torch
from torch.nn import functional
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer

from benchmarks.kinds_data import Asked, Labelled
from slim_rl.analysis.kinds import KINDS, tag, untagged

EPOCHS, BATCH, LEARNING_RATE = 2, 32, 1e-4
ALONE = 0.1
"""Chance in training of a clause to be read without what was said before it."""
TOKENS = 96
ORDINARY_TOKENS = slice(1996, 16000)
"""The commoner words of BERT's vocabulary, behind its signs and letters."""


class Teacher(torch.nn.Module):
    """Reads the clause as first segment and what was said before it as second.

    Args:
        path: all-MiniLM-L6-v2 or another BERT-like encoder, as saved by transformers.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokenizer = AutoTokenizer.from_pretrained(path, truncation_side="left")
        self.encoder = AutoModel.from_pretrained(path)
        self.words = self.encoder.get_input_embeddings().weight.requires_grad_(False)
        self.output = torch.nn.Linear(2 * self.encoder.config.hidden_size, len(KINDS))

    def forward(self, questions: Sequence[Asked], alone: Sequence[bool] | None = None) -> torch.Tensor:
        """Logits of the kinds, (questions, kinds)."""
        before = ["" if alone and alone[i] else _before(question) for i, question in enumerate(questions)]
        clauses = [question.clause for question in questions]
        tokens = self.tokenizer(
            clauses,
            before,
            padding=True,
            truncation="longest_first",
            max_length=TOKENS,
            return_tensors="pt",
        )
        hidden = self.encoder(**tokens).last_hidden_state
        clause = (tokens["attention_mask"] * (1 - tokens["token_type_ids"])).unsqueeze(-1)
        mean = (hidden * clause).sum(1) / clause.sum(1)
        return self.output(torch.cat([hidden[:, 0], mean], dim=-1))

    def fit(self, data: Sequence[Labelled]) -> None:
        """Fits all but the embeddings of words, by AdamW, to the cross-entropy of `data`."""
        random = Random(0)
        encoder = [weight for weight in self.encoder.parameters() if weight.requires_grad]
        groups = [{"params": encoder}, {"params": self.output.parameters()}]
        rates = [LEARNING_RATE, 10 * LEARNING_RATE]
        optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, weight_decay=0.01)
        steps = EPOCHS * math.ceil(len(data) / BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps, pct_start=0.1)
        self.train()
        with tqdm(total=steps, desc="teacher", unit="batch") as bar:
            for _ in range(EPOCHS):
                for batch in _batches(data, random):
                    questions, kinds = zip(*batch, strict=True)
                    logits = self(questions, [random.random() < ALONE for _ in batch])
                    loss = functional.cross_entropy(logits, torch.tensor(kinds), label_smoothing=0.05)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    schedule.step()
                    bar.update()
        self.eval()

    @torch.inference_mode()
    def probabilities(self, questions: Sequence[Asked]) -> torch.Tensor:
        """Of the kinds, (questions, kinds), float32."""
        order = sorted(
            range(len(questions)), key=lambda i: len(questions[i].clause) + len(_before(questions[i]))
        )
        found = torch.empty(len(questions), len(KINDS))
        for start in tqdm(range(0, len(order), 2 * BATCH), desc="labels", unit="batch"):
            rows = order[start : start + 2 * BATCH]
            with torch.autocast("cpu", torch.bfloat16):
                logits = self([questions[i] for i in rows])
            found[rows] = logits.float().softmax(-1)
        return found

    @cache  # noqa: B019 - one teacher, as long as the program
    def similar(self, word: str) -> Sequence[str]:
        """The ordinary words whose embeddings are nearest to that of `word`, at most 15."""
        token = self.tokenizer.get_vocab().get(word)
        if token is None:
            return ()
        words = self.words[ORDINARY_TOKENS]
        nearest = torch.cosine_similarity(words, self.words[token], dim=-1).topk(16).indices
        found = self.tokenizer.convert_ids_to_tokens([ORDINARY_TOKENS.start + int(i) for i in nearest])
        return [
            other
            for other in found
            if other != word and other.isascii() and other.isalpha() and len(other) > 1
        ]


def _before(question: Asked) -> str:
    turns = [untagged(turn) if tag(turn) == "message" else tag(turn) for turn in reversed(question.turns)]
    return (
        (" | ".join(turns) or "start")[-300:]
        + " || "
        + question.text[max(0, question.start - 200) : question.start]
    )


def _batches(data: Sequence[Labelled], random: Random) -> list[Sequence[Labelled]]:
    """Batches of questions about as long as each other, in any order."""
    shuffled = random.sample(data, len(data))
    pools = [shuffled[i : i + 20 * BATCH] for i in range(0, len(data), 20 * BATCH)]
    sorted_pools = [sorted(pool, key=lambda q: len(q[0].clause) + len(_before(q[0]))) for pool in pools]
    batches = [pool[i : i + BATCH] for pool in sorted_pools for i in range(0, len(pool), BATCH)]
    return random.sample(batches, len(batches))
