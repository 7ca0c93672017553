"""Tools, environments and rewards for groups through SLIME's hooks."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from slime.utils.types import Sample

from slim_rl.games import game_parameters, load_games
from slim_rl.games.openreward import Parameters
from slim_rl.slime.context import Context
from slim_rl.slime.rewards import judge_group
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer
from tests import echo
from tests.babbler import Caller
from tests.games.openreward.conftest import Solver, request, seating, serving
from tests.slime.support import SGLangShaped, check_sent_is_trained_on, play, sample_of, slime

WORDS = echo.echo_tokenizer()
TASKS = list(echo.taskset(echo.Parameters(), 0, "").tasks("train", 4))


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), thinking=st.booleans())
def test_what_goes_to_the_engine_in_a_dialogue_with_tools_is_what_is_trained_on(seed, thinking):
    engine = SGLangShaped(WORDS, seed, failing=0.02, aborting=0.1, engine=Caller(WORDS, seed, echo.SPOKEN))
    model = {"thinking": thinking, "turn_tokens": 300, "tool_tokens": 50}
    with slime(WORDS, engine, games={"matching": None, "tests.echo": {"max_turns": 6}}, model=model) as args:
        args.rollout_max_context_len = 20_000
        sample = sample_of(TASKS[seed % 4], game="tests.echo")
        sample = play(args, sample, max_new_tokens=300)
        while sample.status == Sample.Status.ABORTED:
            args.state.aborted = False
            sample = play(args, sample, max_new_tokens=300)
    check_sent_is_trained_on(sample, engine)


def test_the_calculator_and_an_environment_are_played_as_on_the_local_backend(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = load_games({"calculator": game_parameters("calculator", {})}, 0)["calculator"]
    shown = [own.taskset.demonstrate(task, "solver") for task in own.taskset.tasks("demonstrations", 40)]
    words = small_tokenizer(chat_corpus(shown))
    with serving(tmp_path) as server:
        name = f"openreward:{server.url}"
        games = {"calculator": own, **load_games({name: Parameters(min_reward=0)}, 0)}
        for game in games.values():
            task = next(iter(game.taskset.tasks("train", 1)))
            local = asyncio.run(seating(game, words, Solver(words)).play(request(game, task)))
            engine = SGLangShaped(words, 0, engine=Solver(words))
            given = {"matching": None, game.name: game.parameters.model_dump()}
            with slime(words, engine, games=given, model={"turn_tokens": 300}) as args:
                args.rollout_max_context_len = 20_000
                sample = play(args, sample_of(task, game=game.name), max_new_tokens=300)
            assert (sample.status, sample.reward) == (Sample.Status.COMPLETED, 1.0)
            assert sample.tokens == local.traces["solver"].token_ids
        assert server.counts()["open"] == []


def longest(episodes, tasks):
    assert [task.state["word"] for task in tasks]
    longest = max(len(e.turns) for e in episodes)
    return [float(len(e.turns) == longest) for e in episodes]


def test_a_group_is_judged_together():
    games = {
        "matching": None,
        "tests.echo": {"reward_function": {"function": "tests.slime.test_tools:longest", "scope": "group"}},
    }
    samples = []
    for number, looks in enumerate((1, 3)):
        engine = SGLangShaped(WORDS, 0, engine=echo.EchoEngine(WORDS, looks))
        with slime(WORDS, engine, games=games, model={"turn_tokens": 300}) as args:
            args.rollout_max_context_len = 20_000
            samples.append(play(args, sample_of(TASKS[0], number, "tests.echo"), max_new_tokens=300))
    assert Context.of(args).parameters.games["tests.echo"].reward_function.scope == "group"
    assert asyncio.run(judge_group(args, samples)) == [0.0, 1.0]
    assert [s.metadata["played"].episode.rewards for s in samples] == [{"solver": 0.0}, {"solver": 1.0}]
