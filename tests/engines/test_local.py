import asyncio

import pytest
import torch

from slim_rl.core.errors import Diverged, UserError
from slim_rl.engines.engine import Sampling
from slim_rl.engines.local import LocalEngine
from tests.settings import counting

PROMPTS = [[5, 6, 7, 8], [5, 6, 7, 8], [9, 10], [11] * 30]


def generate(engine, prompts, max_new_tokens=12, **sampling):
    async def all_at_once():
        requests = [
            engine.generate(ids, Sampling(max_new_tokens, seed=seed, **sampling)) for seed, ids in enumerate(prompts)
        ]
        return await asyncio.gather(*requests)

    return asyncio.run(all_at_once())


def full_forward_logprobs(model, prompt, token_ids, temperature=1.0):
    with torch.no_grad():
        logits = model(torch.tensor([prompt + token_ids])).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(token_ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_full_forward_pass(model, engine, temperature):
    for prompt, generation in zip(PROMPTS, generate(engine, PROMPTS, temperature=temperature), strict=True):
        expected = full_forward_logprobs(model, prompt, generation.token_ids, temperature)
        assert generation.logprobs == pytest.approx(expected, abs=1e-4)


def test_what_all_prompts_begin_with_is_computed_once(model, engine):
    prompts = [[7] * 60 + end for end in ([1, 2, 3], [4, 5], [6, 8, 9, 10])]
    computed = counting(model.get_decoder().layers[0])
    generations = generate(engine, prompts)
    assert computed[0] == 60 and sum(computed) < 60 + len(prompts) * (4 + 12)
    for prompt, generation in zip(prompts, generations, strict=True):
        expected = full_forward_logprobs(model, prompt, generation.token_ids)
        assert generation.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_request_draws_the_same_tokens_alone_and_in_company(model):
    together, one_by_one = (generate(LocalEngine(model, max_batch_sequences=n), PROMPTS) for n in (256, 1))
    assert [g.token_ids for g in one_by_one] == [g.token_ids for g in together]


def test_a_session_goes_on_as_if_everything_were_computed_anew(model, engine):
    async def two_turns(session):
        first = await engine.generate(PROMPTS[0], Sampling(6, seed=1, session=session))
        longer = PROMPTS[0] + first.token_ids + [20, 21, 22]
        return longer, await engine.generate(longer, Sampling(6, seed=2, session=session))

    longer, kept = asyncio.run(two_turns("a dialogue"))
    _, anew = asyncio.run(two_turns(None))
    assert kept.token_ids == anew.token_ids
    assert kept.logprobs == pytest.approx(full_forward_logprobs(model, longer, kept.token_ids), abs=1e-4)


@pytest.mark.parametrize(
    ("first", "then", "computed_anew"),
    [
        (list(range(5, 65)), [*range(5, 65), 20, 21, 22], 3),  # a turn was taken back
        ([5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15], 7),  # another beginning
    ],
)
def test_a_session_computes_no_more_than_what_is_new(model, engine, first, then, computed_anew):
    async def turns():
        await engine.generate(first, Sampling(6, seed=1, session="s"))
        computed = counting(model.get_decoder().layers[0])
        return await engine.generate(then, Sampling(4, seed=2, session="s")), computed[0]

    generation, computed = asyncio.run(turns())
    assert computed == computed_anew
    anew = asyncio.run(LocalEngine(model).generate(then, Sampling(4, seed=2)))
    assert generation.token_ids == anew.token_ids
    assert generation.logprobs == pytest.approx(full_forward_logprobs(model, then, generation.token_ids), abs=1e-4)


def test_sampling_ends_with_a_stop_token(engine):
    everything = tuple(range(engine.model.config.vocab_size))
    for generation in generate(engine, PROMPTS, stop_token_ids=everything):
        assert (len(generation.token_ids), generation.finish_reason) == (1, "stop")
    assert {g.finish_reason for g in generate(engine, PROMPTS)} == {"length"}


def test_temperature_zero_takes_the_most_likely_token(model, engine):
    generation = asyncio.run(engine.generate(PROMPTS[0], Sampling(1, temperature=0.0)))
    assert generation.token_ids == [int(model(torch.tensor([PROMPTS[0]])).logits[0, -1].argmax())]


def test_samples_follow_the_models_distribution(model, engine):
    drawn = generate(engine, [PROMPTS[0]] * 3000, stop_token_ids=tuple(range(model.config.vocab_size)))
    counts = torch.bincount(torch.tensor([g.token_ids[0] for g in drawn]), minlength=model.config.vocab_size)
    probabilities = torch.softmax(model(torch.tensor([PROMPTS[0]])).logits[0, -1], -1)
    top = probabilities.topk(5).indices
    error = (probabilities * (1 - probabilities) / 3000).sqrt()
    assert torch.all((counts / 3000 - probabilities).abs()[top] < 4 * error[top])


def test_an_error_reaches_everyone_who_waits(engine):
    async def all_fail():
        requests = [engine.generate([10**6], Sampling(2)) for _ in range(3)]
        return await asyncio.gather(*requests, return_exceptions=True)

    assert [type(error) for error in asyncio.run(all_fail())] == [IndexError] * 3


def test_too_many_dialogues_for_the_memory_are_told_in_a_sentence(engine):
    with pytest.raises(UserError, match=r"while 2 dialogues were sampled at once.* lower concurrency"):
        generate(engine, PROMPTS[:2], max_new_tokens=10**13)


def test_of_engines_that_share_a_turn_one_samples_at_a_time(model, monkeypatch):
    """Otherwise the members of a batch would depend on which engine is faster."""
    sampling, most, sample = [], [], LocalEngine.sample

    def watched(self, requests):
        sampling.append(self)
        most.append(len(sampling))
        try:
            return sample(self, requests)
        finally:
            sampling.remove(self)

    monkeypatch.setattr(LocalEngine, "sample", watched)

    async def all_at_once():
        turn = asyncio.Lock()
        engines = [LocalEngine(model, turn=turn) for _ in range(3)]
        return await asyncio.gather(*(e.generate(PROMPTS[0], Sampling(4, seed=1)) for e in engines))

    answers = [answer.token_ids for answer in asyncio.run(all_at_once())]
    assert len(most) == 3 and max(most) == 1
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize(("value", "temperature"), [("nan", 1.0), ("inf", 1.0), ("nan", 0.0)])
def test_a_model_whose_numbers_are_not_finite_says_nothing(model, value, temperature):
    with torch.no_grad():
        model.lm_head.weight[5] = float(value)
    with pytest.raises(Diverged, match="log-probs are no finite numbers"):
        generate(LocalEngine(model), PROMPTS, temperature=temperature)
