"""Episodes made to measure, on disk as a run leaves them."""

from itertools import product

import numpy as np

from slim_rl.core.episode import Episode, Turn
from slim_rl.core.message import heard, said
from slim_rl.games.matching.language import MUST_ANSWER, answer, prompt, question
from slim_rl.games.matching.names import format_proposal
from slim_rl.rollout.shards import write_shard

GAMES = {"matching": {}}
AGENT, PARTNER = "player-1", "player-2"
KNOWN = np.full((8, 8), -1)
KNOWN[0, 0] = 44  # all that the agent sees
LONG_WORDS = "<script>document.title = 'broken into'</script> & \"quotes\" </script>"


def make_episodes(
    player, reward, useful=0.0, games=200, samples=1, step=0, wasted=0, own_view=0.78, noise=0.05, failed=0, each=None,
    arm="", game="matching", partner="scripted",
):  # fmt: skip
    """Episodes whose means are about `reward` and `useful`; the first `failed` of them failed.

    `wasted` questions are about the one cell that the agent sees. With `each`, every useful question adds that much to
    the reward.
    """
    rng = np.random.default_rng([ord(letter) for letter in player + arm] + [step])
    for number in range(games * samples):
        board, sample = divmod(number, samples)
        name, seating = f"{player}{arm}/{step}/{board}/{sample}", {AGENT: player, PARTNER: partner}
        episode = Episode(name, f"board-{board}", game, seating, arm=arm, step=step)
        if number < failed:
            episode.status, episode.error = "failed", "TimeoutError: no answer"
            yield episode
            continue
        asked = min(int(rng.poisson(useful)), 63)
        earned = reward + noise * rng.standard_normal() + (each or 0) * asked
        earned = float(np.clip(earned, 0, 1))
        episode.turns = list(dialogue(asked, wasted))
        episode.rewards = {AGENT: earned, PARTNER: earned}
        own = {"errors": 0, "own_view": own_view, "unknown_cells": 63}
        own["oracle_given_information"] = min(1.0, earned + 0.02)
        metrics = {f"{AGENT}.{name}": value for name, value in own.items()}
        episode.metrics = {"turns": len(episode.turns), **metrics}
        yield episode


def dialogue(asked, wasted):
    """Questions about `asked` unknown cells, then about the known one, all answered; then a proposal."""
    cells = [*product(range(8), range(8))]
    agent, partner = prompt(KNOWN, False), prompt(np.full((8, 8), 7), False) + "\n"
    for cell in cells[1 : asked + 1] + [cells[0]] * wasted:
        yield turn(AGENT, agent, question(*cell))
        yield turn(PARTNER, partner + f"Partner: {question(*cell)}", f"[message] {answer(*cell, 7)}")
        agent, partner = f"Partner: [message] {answer(*cell, 7)}", ""
    proposal = "[propose] " + format_proposal(range(8))
    yield turn(AGENT, agent, proposal)
    yield turn(PARTNER, partner + f"Partner: {proposal}\n{MUST_ANSWER}", "[accept]")


def turn(seat, read, text):
    return Turn(seat, heard(read), said(text))


def write(folder, episodes):
    write_shard(folder / "00000.parquet", list(episodes))


def write_players(folder, **players):
    """`folder/PLAYER` for each player, by its arguments of `make_episodes`."""
    for player, arguments in players.items():
        write(folder / player, make_episodes(player, **arguments))


def write_run(folder):
    """A run in which asking pays, and is learnt."""
    for step in range(9):
        rollouts = make_episodes("policy", 0.8 + 0.01 * step, step, games=16, samples=4, step=step)
        write(folder / f"data/rollouts/step-{step}", rollouts)
    played = folder / "data/episodes/matching"
    write_players(
        played / "held-out",
        **{
            "base": dict(reward=0.80, useful=0.5, wasted=1, failed=3),
            "trained": dict(reward=0.95, useful=5),
            "bayes": dict(reward=0.78),
            "own-view": dict(reward=0.78),
            "asks-4-useful": dict(reward=0.93, useful=4),
        },
    )
    people = list(make_episodes("humans", 0.92, useful=3, games=100, partner="humans"))
    people[0].turns.insert(2, turn(PARTNER, "", f"[message] {LONG_WORDS}"))
    write(played / "human-boards/humans", people)
    write_players(played / "human-boards", bayes=dict(reward=0.91, games=100))
    for model, each in (("base", 0.02), ("trained", 0.03)):
        arms = {"forbidden": 0.78, **{f"forced-{k}": 0.78 + each * k for k in range(7)}}
        for arm, reward in arms.items():
            write(played / f"intervention/{model}-{arm}", make_episodes(model, reward, arm=arm))
