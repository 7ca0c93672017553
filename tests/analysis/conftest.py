"""Episodes made to measure, on disk as a run leaves them."""

from itertools import product

import numpy as np
import pytest

from slim_rl.games.matching.language import MUST_ANSWER, answer, prompt, question
from slim_rl.games.matching.names import format_proposal
from slim_rl.rollout.episode import Episode, Turn
from slim_rl.rollout.store import write_shard

AGENT, PARTNER = "player-1", "player-2"
KNOWN = np.full((8, 8), -1)
KNOWN[0, 0] = 44  # all that the agent sees


def make_episodes(
    player, reward, useful=0.0, games=200, samples=1, step=0, wasted=0, own_view=0.78, noise=0.05, failed=0, each=None
):  # fmt: skip
    """Episodes whose means are about `reward` and `useful`; the first `failed` of them failed.

    `wasted` questions are about the one cell that the agent sees; with `each` every useful question adds so
    much to the reward.
    """
    rng = np.random.default_rng([ord(letter) for letter in player] + [step])
    for number in range(games * samples):
        game, sample = divmod(number, samples)
        episode = Episode(
            f"{player}/{step}/{game}/{sample}",
            f"board-{game}",
            "matching",
            {AGENT: player, PARTNER: "scripted"},
            step,
        )
        if number < failed:
            episode.status, episode.error = "failed", "TimeoutError: no answer"
            yield episode
            continue
        asked = min(int(rng.poisson(useful)), 63)
        earned = reward + noise * rng.standard_normal() + (each or 0) * asked
        earned = float(np.clip(earned, 0, 1))
        episode.turns = list(dialogue(asked, wasted))
        episode.rewards = {AGENT: earned, PARTNER: earned}
        facts = {
            "errors": 0,
            "own_view": own_view,
            "unknown_cells": 63,
            "oracle_given_information": min(1.0, earned + 0.02),
        }
        turns = {"turns": len(episode.turns)}
        episode.facts = {**turns, **{f"{AGENT}.{name}": value for name, value in facts.items()}}
        yield episode


def dialogue(asked, wasted):
    """Questions about as many unknown cells, then about the known one, all answered; then a proposal."""
    cells = [*product(range(8), range(8))]
    heard = {AGENT: prompt(KNOWN, False), PARTNER: prompt(np.full((8, 8), 7), False) + "\n"}
    for cell in cells[1 : asked + 1] + [cells[0]] * wasted:
        yield Turn(AGENT, heard[AGENT], question(*cell))
        yield Turn(PARTNER, heard[PARTNER] + f"Partner: {question(*cell)}", f"[message] {answer(*cell, 7)}")
        heard = {AGENT: f"Partner: [message] {answer(*cell, 7)}", PARTNER: ""}
    proposal = "[propose] " + format_proposal(range(8))
    yield Turn(AGENT, heard[AGENT], proposal)
    yield Turn(PARTNER, heard[PARTNER] + f"Partner: {proposal}\n{MUST_ANSWER}", "[accept]")


@pytest.fixture(scope="session")
def write_players():
    def write(folder, **players):
        """`folder/PLAYER/00000.parquet` for each player, by its arguments of `make_episodes`."""
        for player, arguments in players.items():
            write_shard(folder / player / "00000.parquet", list(make_episodes(player, **arguments)))
        return folder

    return write


@pytest.fixture(scope="session")
def write_training():
    def write(folder, steps):
        for step in range(steps):
            episodes = make_episodes("policy", 0.8 + 0.01 * step, step, games=16, samples=4, step=step)
            write_shard(folder / f"step-{step:05d}.parquet", list(episodes))
        return folder

    return write


@pytest.fixture(scope="session")
def write_intervention():
    def write(folder, base, trained, forbidden=0.78, games=200):
        """Arms of both models: `base` and `trained` are the reward that a forced question adds to each."""
        for model, each in (("base", base), ("trained", trained)):
            arms = {f"{model}-forbidden": dict(reward=forbidden, games=games)}
            arms |= {f"{model}-forced-{k}": dict(reward=0.78 + each * k, games=games) for k in range(7)}
            for arm, arguments in arms.items():
                write_shard(folder / arm / "00000.parquet", list(make_episodes(arm, **arguments)))
        return folder

    return write
