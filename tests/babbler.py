"""Engines for tests, and the check that what was sampled is what is trained on."""

import numpy as np

from slim_rl.engines.engine import Generation
from slim_rl.games.matching.partner import question

SENSIBLE = (
    question(0, 1),
    "[propose] Proposal:\nBLEU: Ava Li\nElectra: Sofia Patel\nGloVe: Daniel Nguyen",
)


class Scripted:
    """An engine that takes these turns (token ids), one after the other; `asked` is what it was asked with."""

    max_context_tokens = 10_000

    def __init__(self, turns):
        self._turns, self.asked = iter(turns), []

    async def generate(self, input_ids, sampling):
        self.asked.append(list(input_ids))
        ids = next(self._turns)
        return Generation(ids, [-0.5] * len(ids), "stop" if ids[-1] in sampling.stop_token_ids else "length")

    def release(self, session):
        pass


class Babbler:
    """An engine that says anything at all: empty turns, no end token, markers in the text."""

    max_context_tokens = 1500
    moods = 4
    """In all but three of them it says something sensible."""

    def __init__(self, tokenizer, seed, sensible=SENSIBLE):
        self.asked, self.sessions, self.rng = [], [], np.random.default_rng(seed)
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
        self.sessions.append(sampling.session)
        return generation

    def release(self, session):
        self.released = session


class Caller(Babbler):
    """Mostly sensible, for games with tools."""

    max_context_tokens = 20_000
    moods = 12


def check_tokens(engine, episode, taken_back=False):
    """Every token is accounted for: asked as it is trained on, and trained on exactly if it was sampled, in one sequence.

    Args:
        taken_back: turns may have been taken back; those are in no sequence.
    """
    trained = {seat: [0] * len(trace.token_ids) for seat, trace in episode.traces.items()}
    for session, (asked, said) in zip(engine.sessions, engine.asked, strict=True):
        seat = session.rpartition("/")[2]
        trace, end = episode.traces[seat], len(asked) + len(said.token_ids)
        if taken_back and trace.logprobs[len(asked) : end] != said.logprobs:
            continue
        assert trace.token_ids[: len(asked)] == asked
        assert trace.token_ids[len(asked) : end] == said.token_ids
        assert trace.logprobs[len(asked) : end] == said.logprobs
        assert not any(trained[seat][len(asked) : end])
        trained[seat][len(asked) : end] = [1] * len(said.token_ids)
    for seat, trace in episode.traces.items():
        assert trace.loss_mask == trained[seat]
        assert not any(logprob for logprob, mask in zip(trace.logprobs, trace.loss_mask, strict=True) if not mask)
