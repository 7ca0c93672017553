"""The choice whether to ask, and what, taken from a policy: what it says then, and what of it was sampled."""

import asyncio
from functools import partial

import numpy as np
import pytest

from slim_rl.core.message import said
from slim_rl.games import NamedGame, load_games
from slim_rl.games.matching import Parameters
from slim_rl.games.matching.partner import question
from slim_rl.rollout.seating import PolicyRules, Request, Seat, Seating, under
from slim_rl.studies.asking.forced import (
    MESSAGE,
    as_many,
    asks_on,
    asks_planned,
    asks_unknown,
    forbidden,
    given,
    proposal,
)
from tests.babbler import Scripted
from tests.studies.asking import made

AGENT = "player-1"


@pytest.fixture(scope="module")
def patient():
    return load_games({"matching": Parameters(patience=(2, 4), spare_turns=(0, 0))}, 0)["matching"]


@pytest.fixture(scope="module")
def tasks(patient):
    return list(patient.taskset.tasks("evaluate", 12))


@pytest.fixture(scope="module")
def free(patient):
    """Free play of another policy, by board."""
    return {episode.game_id: episode for episode in made.play(patient, "other", made.Policy(2), 12)}


@pytest.fixture
def play(patient, renderer):
    """play(arm, engine, tasks): the episodes of a model, all at once."""

    def play(arm, engine, tasks, game=patient):
        seating = Seating({"matching": game}, {"base": under(arm, PolicyRules(renderer, 32, 1.0).maker(engine))}, 0)
        requests = [Request(f"arm/{t.game_id}", "matching", t, ("base", "scripted")) for t in tasks]

        async def all_of_them():
            return await asyncio.gather(*map(seating.play, requests))

        return asyncio.run(all_of_them())

    return play


def proposal_on(parameters):
    return proposal(Seat(AGENT, None, NamedGame("matching", parameters, None), None, 0))


def beginning(renderer, constraint):
    return list(renderer.beginning(constraint.begins))


def turns_of_the_agent(episode):
    return [turn.text for turn in episode.turns if turn.seat == AGENT]


def saying(renderer, *turns):
    """An engine whose model says one thing after another."""
    return Scripted([renderer.turn(turn) for turn in turns])


def test_it_says_what_the_other_one_said_hears_the_answers_and_has_to_propose(play, engine, tasks, free, renderer):
    for episode in play(partial(given, free), engine, tasks):
        theirs = turns_of_the_agent(free[episode.game_id])[:-1]
        turns = turns_of_the_agent(episode)
        assert len(theirs) == 2 and turns[:2] == theirs
        assert turns[2].startswith("[propose] Proposal:\nBLEU:")
        assert episode.metrics[f"{AGENT}.answers"] == free[episode.game_id].metrics[f"{AGENT}.answers"]
        # The messages are context, token for token as the model would have said them.
        trace = episode.traces[AGENT]
        context = " ".join(str(t) for t, mask in zip(trace.token_ids, trace.loss_mask, strict=True) if not mask)
        assert all(" ".join(map(str, renderer.turn(text))) in context for text in theirs)


FIRST, SECOND = question(0, 0), question(1, 1)
PROPOSAL = "[propose] Proposal:\nBLEU: Ava Li\nElectra: Daniel Nguyen\nGloVe: Sofia Patel"
REST_OF_PROPOSAL = " Ava Li\nElectra: Daniel Nguyen\nGloVe: Sofia Patel"


def test_told_not_to_stop_it_asks_in_its_own_words_until_patience_ends(play, renderer, patient, tasks):
    """Its proposal is taken back for a message, and its third question for a proposal."""
    task = next(t for t in tasks if t.state["patience"] == 2)
    engine = saying(renderer, FIRST, PROPOSAL, SECOND.removeprefix("[message]"), REST_OF_PROPOSAL)
    [episode] = play(asks_on, engine, [task])
    assert turns_of_the_agent(episode) == [FIRST, SECOND, PROPOSAL]
    assert episode.metrics[f"{AGENT}.question_count"] == 2 and episode.status == "completed"
    assert engine.asked[2] == engine.asked[1] + beginning(renderer, MESSAGE)
    proposes = beginning(renderer, proposal_on(Parameters()))
    assert engine.asked[3][-len(proposes) :] == proposes


def test_told_what_to_ask_for_it_asks_for_unknown_cells_alone_while_there_are_any(play, renderer):
    """A question about a cell known roughly, and one about a cell that it was told, are taken back."""
    rough = load_games({"matching": Parameters(patience=(3, 3), p_agent=0, p_rough=0.7, p_partner=1)}, 0)["matching"]
    task = next(t for t in rough.taskset.tasks("evaluate", 50) if np.sum(t.state["rough1"]) == 7)
    known, unknown = (np.argwhere(np.array(task.state["rough1"]) == flag).tolist() for flag in (1, 0))
    said = [question(*cell) for cell in (known[0], unknown[0], unknown[0], unknown[1], known[0])]
    engine = saying(renderer, *said, REST_OF_PROPOSAL)
    [episode] = play(asks_unknown, engine, [task], rough)
    assert turns_of_the_agent(episode) == [said[1], said[3], said[4], PROPOSAL]


def test_told_what_to_ask_by_the_planner_it_hears_the_answers_and_proposes_itself(play, renderer, patient, tasks):
    task = next(t for t in tasks if t.state["patience"] == 2)
    request = Request("planner", "matching", task, ("optimal", "scripted"))
    planner = asyncio.run(Seating({"matching": patient}, {}, 0).play(request))
    [episode] = play(asks_planned, saying(renderer, REST_OF_PROPOSAL), [task])
    *questions, own = turns_of_the_agent(planner)
    assert len(questions) == 2 and own != PROPOSAL
    assert turns_of_the_agent(episode) == [*questions, PROPOSAL]


def test_told_not_to_stop_it_asks_no_more_than_demonstrations_show(play, renderer):
    few = load_games({"matching": Parameters(question_price=(1, 1), max_questions=1)}, 0)["matching"]
    tasks = list(few.taskset.tasks("evaluate", 1))
    [episode] = play(asks_on, saying(renderer, FIRST, REST_OF_PROPOSAL), tasks, few)
    assert turns_of_the_agent(episode) == [FIRST, PROPOSAL]


def test_it_asks_for_as_many_cells_as_the_other_one(play, renderer, tasks, free):
    task = next(t for t in tasks if t.state["patience"] == 4)
    engine = saying(renderer, FIRST, SECOND, REST_OF_PROPOSAL)
    [episode] = play(partial(as_many, free), engine, [task])
    assert turns_of_the_agent(episode) == [FIRST, SECOND, PROPOSAL]


def test_a_forbidden_question_is_taken_back_as_if_it_had_never_been_said(play, renderer, tasks):
    engine = saying(renderer, "[message] I like BLEU.", FIRST, REST_OF_PROPOSAL)
    [episode] = play(forbidden, engine, tasks[:1])
    assert turns_of_the_agent(episode) == ["[message] I like BLEU.", PROPOSAL]
    assert episode.status == "completed"
    assert episode.metrics[f"{AGENT}.question_count"] == 0
    trace = episode.traces[AGENT]
    asked = renderer.turn(FIRST)
    assert not any(trace.token_ids[i : i + len(asked)] == asked for i in range(len(trace.token_ids)))
    # The second try read what the first had read, and then the beginning of a proposal.
    assert engine.asked[2] == engine.asked[1] + beginning(renderer, proposal_on(Parameters()))


def test_turns_begin_with_tokens_that_the_model_knows_from_training(renderer):
    first_tokens = beginning(renderer, proposal_on(Parameters()))
    for first in ("Ava Li", "Noah Wilson"):
        whole = renderer.turn(f"[propose] Proposal:\nBLEU: {first}\nElectra: Daniel Nguyen\nGloVe: Sofia Patel")
        assert whole[: len(first_tokens)] == first_tokens
    assert renderer.parse(first_tokens) == said("[propose] Proposal:\nBLEU:")
    first_tokens = beginning(renderer, proposal_on(Parameters(write_sums=True)))
    for rest in ("Proposal:\nBLEU: Ava Li", "<think>50 + 50 = 100</think>Proposal:\nBLEU: Ava Li"):
        assert renderer.turn(f"[propose] {rest}")[: len(first_tokens)] == first_tokens
    assert renderer.parse(first_tokens) == said("[propose]")
    first_tokens = beginning(renderer, MESSAGE)
    assert all(renderer.turn(text)[: len(first_tokens)] == first_tokens for text in (FIRST, "[message] Hello!"))
    assert renderer.parse(first_tokens) == said("[message]")
