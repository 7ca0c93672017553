"""The choice whether to ask, taken from a policy: what it says then, and what of it was sampled."""

import asyncio

import pytest

from slim_rl.core.message import said
from slim_rl.engines.engine import Generation
from slim_rl.rollout.seating import PolicyRules, Request, Seating
from slim_rl.studies.asking.forced import ARMS, forced_maker, proposal_beginning, questions_about_unknown
from slim_rl.studies.series import Policy

AGENT = "player-1"


@pytest.fixture
def play(matching, renderer):
    """play(arm, engine, tasks): the episodes of a model in one arm, all at once."""

    def play(arm, engine, tasks):
        maker = forced_maker(arm, Policy(engine, PolicyRules(renderer, 32, 1.0)), size=3)
        seating = Seating({"matching": matching}, {"base": maker}, 0)
        requests = [Request(f"{arm}/{t.game_id}", "matching", t, ("base", "scripted"), arm=arm) for t in tasks]

        async def all_of_them():
            return await asyncio.gather(*map(seating.play, requests))

        return asyncio.run(all_of_them())

    return play


def turns_of_the_agent(episode):
    return [turn.text for turn in episode.turns if turn.seat == AGENT]


class Scripted:
    """An engine whose model says one thing after another."""

    max_context_tokens = 512

    def __init__(self, renderer, *turns):
        self._turns = [renderer.turn(turn) for turn in turns]
        self.heard: list[list[int]] = []

    async def generate(self, input_ids, sampling):
        self.heard.append(list(input_ids))
        ids = self._turns.pop(0)
        return Generation(ids, [-0.5] * len(ids), "stop")

    def release(self, session):
        pass


@pytest.mark.parametrize("arm", ARMS)
def test_in_every_arm_just_the_sampled_tokens_are_marked(arm, play, engine, tasks):
    for episode in play(arm, engine, tasks):
        trace = episode.traces[AGENT]
        assert len(trace.token_ids) == len(trace.loss_mask) == len(trace.logprobs)
        assert all(bool(mask) == (logprob != 0) for mask, logprob in zip(trace.loss_mask, trace.logprobs, strict=True))
        assert sum(trace.loss_mask) > 0


@pytest.mark.parametrize("k", [0, 1, 3, 6])
def test_k_questions_are_forced_and_then_a_proposal(k, play, engine, matching, renderer, tasks):
    for episode, task in zip(play(f"forced-{k}", engine, tasks), tasks, strict=True):
        unknown = questions_about_unknown(matching.taskset.load(task), AGENT)
        asked, turns = unknown[:k], turns_of_the_agent(episode)
        assert turns[: len(asked)] == asked
        assert turns[len(asked)].startswith("[propose] Proposal:\nBLEU: ")
        assert episode.metrics[f"{AGENT}.useful_questions"] == len(asked) == min(k, len(unknown))
        # The questions are context, token for token as the model would have said them.
        trace = episode.traces[AGENT]
        context = " ".join(str(t) for t, mask in zip(trace.token_ids, trace.loss_mask, strict=True) if not mask)
        for question in asked:
            assert " ".join(map(str, renderer.turn(question))) in context


def test_the_same_cells_are_asked_for_every_model(matching, tasks):
    first, again = (questions_about_unknown(matching.taskset.load(tasks[0]), AGENT) for _ in range(2))
    assert first == again and len(set(first)) == len(first) > 3


def test_a_forbidden_question_is_taken_back_as_if_it_had_never_been_said(play, renderer, tasks):
    question = "[message] What is Ava Li's score for BLEU?"
    rest = "Ava Li\nElectra: Daniel Nguyen\nGloVe: Sofia Patel"
    engine = Scripted(renderer, "[message] I like BLEU.", question, rest)
    [episode] = play("forbidden", engine, tasks[:1])
    assert turns_of_the_agent(episode) == ["[message] I like BLEU.", "[propose] Proposal:\nBLEU: " + rest]
    assert episode.status == "completed"
    assert episode.metrics[f"{AGENT}.questions"] == 0
    trace = episode.traces[AGENT]
    asked = renderer.turn(question)
    assert not any(trace.token_ids[i : i + len(asked)] == asked for i in range(len(trace.token_ids)))
    # The second try read what the first had read, and then the beginning of a proposal.
    assert engine.heard[2] == engine.heard[1] + list(proposal_beginning(renderer, 3))


def test_a_proposal_begins_with_tokens_that_the_model_knows_from_training(renderer):
    beginning = list(proposal_beginning(renderer, 3))
    for first in ("Ava Li", "Noah Wilson"):
        whole = renderer.turn(f"[propose] Proposal:\nBLEU: {first}\nElectra: Daniel Nguyen\nGloVe: Sofia Patel")
        assert whole[: len(beginning)] == beginning
    assert renderer.parse(beginning) == said("[propose] Proposal:\nBLEU:")
