"""An engine for tests that says anything at all."""

import numpy as np

from slim_rl.engines.engine import Generation
from slim_rl.games.matching.wordings import question

SENSIBLE = (
    question(0, 1),
    "[propose] Proposal:\nBLEU: Ava Li\nElectra: Sofia Patel\nGloVe: Daniel Nguyen",
)


class Babbler:
    """An engine that says anything at all: empty turns, no end token, markers in the text."""

    max_context_tokens = 1500
    moods = 4
    """In all but three of them it says something sensible."""

    def __init__(self, tokenizer, seed, sensible=SENSIBLE):
        self.asked, self.rng = [], np.random.default_rng(seed)
        self.ids = np.arange(len(tokenizer))
        self.sensible = [tokenizer.encode(text, add_special_tokens=False) for text in sensible]

    async def generate(self, input_ids, sampling):
        end = self.rng.choice(sampling.stop_token_ids)
        match self.rng.integers(self.moods):
            case 0:
                ids = [end]
            case 1:
                ids = [*self.rng.choice(self.ids, self.rng.integers(1, 9)), end]
            case 2:
                ids = self.rng.choice(self.ids, sampling.max_new_tokens).tolist()
            case _:
                ids = [*self.sensible[self.rng.integers(len(self.sensible))], end]
        first_stop = next((i for i, token in enumerate(ids) if token in sampling.stop_token_ids), len(ids))
        ids = [int(token) for token in ids[: first_stop + 1]][: sampling.max_new_tokens]
        generation = Generation(ids, (-self.rng.random(len(ids))).tolist(), "stop")
        self.asked.append((list(input_ids), generation))
        return generation

    def release(self, session):
        self.released = session
