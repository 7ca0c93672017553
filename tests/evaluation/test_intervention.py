"""The choice whether to ask, taken from a policy: what it says then, and what of it was sampled."""

import asyncio

import pytest

from slim_rl.config import Config
from slim_rl.engines.engine import Generation
from slim_rl.evaluation.intervention import (
    ARMS,
    intervention_maker,
    proposal_beginning,
    questions_about_unknown,
)
from slim_rl.games.matching import kind, load_game
from slim_rl.rollout.collect import collect
from slim_rl.rollout.table import Job
from slim_rl.seating import make_table

AGENT = "player-1"
CONFIG = Config()
SEATING = ("base", "scripted")


def table(arm, engine, chat_format):
    makers = {"base": intervention_maker(arm, engine, chat_format, CONFIG.model.turn_tokens, 1.0)}
    return make_table(CONFIG, kind(CONFIG), SEATING, makers)


def episodes(arm, engine, chat_format, games, folder):
    jobs = [Job(f"{arm}/{game['game_id']}", game, SEATING) for game in games]
    return collect(jobs, table(arm, engine, chat_format).play, folder, concurrency=8)


def said(episode):
    return [turn.text for turn in episode.turns if turn.seat == AGENT]


class Scripted:
    """An engine whose model says one thing after another, then what it is told to end with."""

    max_context_tokens = 512

    def __init__(self, chat_format, *turns):
        self._turns = [chat_format.turn(turn) for turn in turns]
        self.heard: list[list[int]] = []

    async def generate(self, input_ids, sampling):
        self.heard.append(list(input_ids))
        ids = self._turns.pop(0)
        return Generation(ids, [-0.5] * len(ids), "stop")

    def release(self, session):
        pass


@pytest.mark.parametrize("arm", ARMS)
def test_in_every_arm_just_the_sampled_tokens_are_marked(arm, engine, chat_format, games, tmp_path):
    for episode in episodes(arm, engine, chat_format, games, tmp_path):
        trace = episode.traces[AGENT]
        assert len(trace.token_ids) == len(trace.loss_mask) == len(trace.logprobs)
        assert all(
            bool(mask) == (logprob != 0)
            for mask, logprob in zip(trace.loss_mask, trace.logprobs, strict=True)
        )
        assert sum(trace.loss_mask) > 0


@pytest.mark.parametrize("k", [0, 1, 3, 6])
def test_k_questions_are_forced_and_then_a_proposal(k, engine, chat_format, games, tmp_path):
    for episode, game in zip(
        episodes(f"forced-{k}", engine, chat_format, games, tmp_path), games, strict=True
    ):
        unknown = questions_about_unknown(load_game(game, max_turns=20), AGENT)
        asked = unknown[:k]
        assert said(episode)[: len(asked)] == asked
        assert said(episode)[len(asked)].startswith("[propose] Proposal:\nBLEU: ")
        assert episode.facts[f"{AGENT}.useful_questions"] == len(asked) == min(k, len(unknown))
        # The questions are context, token for token as the model would have said them.
        trace = episode.traces[AGENT]
        context = " ".join(
            str(t) for t, mask in zip(trace.token_ids, trace.loss_mask, strict=True) if not mask
        )
        for question in asked:
            assert " ".join(map(str, chat_format.turn(question))) in context


def test_the_same_cells_are_asked_for_every_model(games):
    first, again = (questions_about_unknown(load_game(games[0], 20), AGENT) for _ in range(2))
    assert first == again and len(set(first)) == len(first) > 3


def test_a_forbidden_question_is_taken_back_as_if_it_had_never_been_said(chat_format, games):
    question = "[message] What is Ava Li's score for BLEU?"
    rest = "Ava Li\nElectra: Daniel Nguyen\nGloVe: Sofia Patel"
    engine = Scripted(chat_format, "[message] I like BLEU.", question, rest)
    episode = asyncio.run(table("forbidden", engine, chat_format).play(Job("x", games[0], SEATING)))
    assert said(episode) == ["[message] I like BLEU.", "[propose] Proposal:\nBLEU: " + rest]
    assert episode.status == "completed"
    assert episode.facts[f"{AGENT}.questions"] == 0
    trace = episode.traces[AGENT]
    asked = chat_format.turn(question)
    assert not any(trace.token_ids[i : i + len(asked)] == asked for i in range(len(trace.token_ids)))
    # The second try heard what the first had heard, and then the beginning of a proposal.
    assert engine.heard[2] == engine.heard[1] + list(proposal_beginning(chat_format, 3))


def test_a_proposal_begins_with_tokens_that_the_model_knows_from_training(chat_format):
    beginning = list(proposal_beginning(chat_format, 3))
    for first in ("Ava Li", "Noah Wilson"):
        whole = chat_format.turn(
            f"[propose] Proposal:\nBLEU: {first}\nElectra: Daniel Nguyen\nGloVe: Sofia Patel"
        )
        assert whole[: len(beginning)] == beginning
    assert chat_format.content(beginning) == "[propose] Proposal:\nBLEU:"
