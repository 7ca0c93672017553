"""Episodes made to measure, on disk as a run leaves them."""

import numpy as np
import pytest

from slim_rl.rollout.episode import Episode, Turn
from slim_rl.rollout.store import write_shard

AGENT = "player-1"


def make_episodes(
    player, reward, useful=0.0, games=200, samples=1, step=0, wasted=0, own_view=0.78, noise=0.05, failed=0
):
    """Episodes whose means are about `reward` and `useful`; the first `failed` of them failed."""
    rng = np.random.default_rng([ord(letter) for letter in player])
    for number in range(games * samples):
        game, sample = divmod(number, samples)
        episode = Episode(f"{player}/{step}/{game}/{sample}", f"board-{game}", player, step)
        if number < failed:
            episode.status, episode.error = "failed", "TimeoutError: no answer"
            yield episode
            continue
        asked = int(rng.poisson(useful))
        earned = float(np.clip(reward + noise * rng.standard_normal(), 0, 1))
        said = ["[message] What is Ava Li's score for BLEU?"] * (asked + wasted) + [
            "[propose] <b>BLEU: Ava Li"
        ]
        heard = ["What you see"] + ["Partner: [message] 5"] * (asked + wasted)
        episode.turns = [Turn(AGENT, *turn) for turn in zip(heard, said, strict=True)]
        episode.rewards = {AGENT: earned, "player-2": earned}
        facts = {
            "questions": asked + wasted,
            "useful_questions": asked,
            "errors": 0,
            "own_view": own_view,
            "oracle_given_information": min(1.0, earned + 0.02),
        }
        episode.facts = {"turns": len(said), **{f"{AGENT}.{name}": value for name, value in facts.items()}}
        yield episode


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
