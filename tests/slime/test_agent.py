"""Agents of the user's own under SLIME: one episode, several samples."""

import asyncio
import json
from types import SimpleNamespace

from slime.utils.types import Sample

from slim_rl.games import game_parameters, load_games
from tests import echo
from tests.babbler import Caller
from tests.slime.support import SGLangShaped, check_sent_is_trained_on, play, sample_of, slime

NAME = "agent:tests.games.agent.guests:wanders"
DIALOGUES = 40


def test_whatever_an_agent_does_what_was_sampled_is_what_slime_trains_on(tmp_path):
    """Each request is in one sample, of the sequence that it goes on with; the samples share reward and `rollout_id`."""
    file, tokenizer = tmp_path / "tasks.jsonl", echo.echo_tokenizer()
    file.write_text("".join(json.dumps({"seed": seed}) + "\n" for seed in range(DIALOGUES)))
    parameters = {"tasks": str(file), "eval_tasks": str(file), "max_turns": 40}
    games = {"matching": None, NAME: parameters}
    tasks = load_games({NAME: game_parameters(NAME, parameters)}, 0)[NAME].taskset.tasks("train", DIALOGUES)
    several = aborted = 0
    for seed, task in enumerate(tasks):
        engine = SGLangShaped(tokenizer, seed, aborting=0.02, engine=Caller(tokenizer, seed, echo.SPOKEN))
        with slime(tokenizer, engine, context_tokens=20_000, games=games, model={"turn_tokens": 24}) as args:
            sample = sample_of(task, seed, NAME)
            while isinstance(samples := play(args, sample, run=asyncio.run, max_new_tokens=24), Sample):
                assert samples.status == Sample.Status.ABORTED
                aborted += 1
                sample, args.state.aborted = samples, False
                if not sample.tokens:  # with several samples it starts over
                    engine.asked, engine.params = [], []
        of_samples = {sample.metadata["played"].seat: sample for sample in samples}
        assert len(of_samples) == len(samples)
        sessions = [sampling.session.rpartition("/")[2] for sampling, _ in engine.params]
        assert set(sessions) == set(of_samples)
        for seat, sample in of_samples.items():
            own = [asked for asked, session in zip(engine.asked, sessions, strict=True) if session == seat]
            assert check_sent_is_trained_on(sample, SimpleNamespace(asked=own)) == len(own)
        assert len({sample.reward for sample in samples}) == 1
        if len(samples) > 1:
            several += 1
            assert {sample.rollout_id for sample in samples} == {seed}
    assert several > DIALOGUES / 4 and aborted
