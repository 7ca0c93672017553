"""Policies made to measure, and what they play: real games with the scripted partner, on disk as a run leaves them."""

import asyncio
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from slim_rl.core.episode import Episode, Turn
from slim_rl.core.game import seed_of
from slim_rl.core.message import heard, said
from slim_rl.core.player import ScriptedPlayer
from slim_rl.games import NamedGame, load_games
from slim_rl.games.matching import Parameters
from slim_rl.games.matching.board import expected, optimal_assignment
from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS, format_proposal
from slim_rl.games.matching.optimal import values_of_asking
from slim_rl.games.matching.partner import question
from slim_rl.games.matching.rules import MUST_ANSWER
from slim_rl.rollout.seating import Request, Seating
from slim_rl.rollout.shards import write_shard
from slim_rl.studies.asking.measures import read_sample
from slim_rl.studies.asking.reporting import with_choices
from slim_rl.studies.asking.transfer import CHANGES, with_parameters

AGENT, PARTNER = "player-1", "player-2"
LONG_WORDS = "<script>document.title = 'broken into'</script> & \"quotes\" </script>"
GAMES = {"matching": {"patience": [1, 5], "eval_count": 120}}

NUMBERS = {"games": 512, "reward_base": 0.8, "reward_trained": 0.92, "reward_best": 0.95, "useful_base": 1,
           "useful_trained": 2.7, "truncated_base": 0, "more": 1.7, "gain": 0.12, "pays": 0.12, "regret": 0.03,
           "over_asking_on": 0.02, "room": 0.13, "leak": 0, "choice": 0.02, "rank": 0.7, "rank_unknown": 0.7,
           "transplanted": 0.12, "asks": 0.1, "worth": 0.1}  # fmt: skip
"""The evidence of a run in which asking pays, and is learnt."""


@dataclass(frozen=True)
class Policy:
    """A policy of the matching game.

    Args:
        cells: it asks for so many cells a game on average.
        order: `random`, or `best`, the most valuable first.
        compound: it asks for all of them in one message.
        heeds: it asks for at most as many as its partner's patience.
        careless: probability that it proposes at random.
        pays: it asks only for cells that are worth their price.
        guesses: it knows the best assignment without asking.
        proposes: else it talks until it runs out of turns.
        silent: probability that it talks so, on a board.
    """

    cells: float = 0.0
    order: str = "random"
    compound: bool = False
    heeds: bool = True
    careless: float = 0.0
    pays: bool = False
    guesses: bool = False
    proposes: bool = True
    silent: float = 0.0


class MadePlayer(ScriptedPlayer):
    def __init__(self, policy: Policy, game, seat: str):
        self.policy, self.game, self.seat = policy, game, seat
        # What it asks and what it proposes are drawn apart, so that they can be exchanged between policies.
        self._asks, self._proposes = (np.random.default_rng(seed_of(game.game_id, part)) for part in "ap")
        most = game.limits.max_turns // 2 - 1 if not policy.compound else 99
        patience = most if game.limits.patience is None or not policy.heeds else game.limits.patience
        self._left = min(int(policy.cells + self._asks.random()), most, patience)
        self._unasked = ~game.view(seat).mask
        self._silent = np.random.default_rng(seed_of(game.game_id, "s")).random() < policy.silent

    def turn(self, observation: str) -> str:
        if MUST_ANSWER in observation:
            return "[accept]"
        bounds = np.where(self.policy.guesses, self.game.board.table, self.game.bounds(self.seat))
        cells = []
        while self._left and self._unasked.any() and (self.policy.compound or not cells):
            if (cell := self._next(bounds)) is None:
                break
            self._left -= 1
            self._unasked[cell] = False
            cells.append(cell)
        if self.policy.compound and len(cells) > 1:
            wanted = ", ".join(f"{REVIEWERS[r]} on {SHORT_PAPERS[p]}" for r, p in cells)
            return f"[message] What are your scores for these: {wanted}?"
        if cells:
            return question(*cells[0])
        if not self.policy.proposes or self._silent:
            return "[message] Thank you."
        best = optimal_assignment(expected(bounds))
        if self._proposes.random() < self.policy.careless:
            best = self._proposes.permutation(len(best))
        return "[propose] " + format_proposal(tuple(map(int, best)))

    def _next(self, bounds):
        if self.policy.order == "random":
            return tuple(self._asks.permutation(np.argwhere(self._unasked))[0].tolist())
        worth = np.where(self._unasked, values_of_asking(bounds), -1)
        cell = np.unravel_index(int(np.argmax(worth)), worth.shape)
        price = self.game.limits.price / 100 * self.game.board.best_assignment_reward
        return None if self.policy.pays and worth[cell] <= price else tuple(map(int, cell))


@cache
def game_of(**parameters) -> NamedGame:
    return load_games({"matching": Parameters(**parameters)}, seed=0)["matching"]


def play(game: NamedGame, player: str, policy: Policy | None = None, count=120, arm="", step=0, samples=1, partner="scripted",
         purpose="evaluate") -> list[Episode]:  # fmt: skip
    """Episodes of a made policy under the name `player`, or of the reference of that name."""
    makers = {player: lambda seat: MadePlayer(policy, seat.game, seat.name)} if policy else {}
    seating = Seating({game.name: game}, makers, 0)
    requests = [
        Request(f"{player}{arm}/{step}/{task.game_id}/{n}", game.name, task, (player, partner), step=step, arm=arm)
        for task in game.taskset.tasks(purpose, count)
        for n in range(samples)
    ]

    async def all_of_them():
        return [await seating.play(request) for request in requests]

    return asyncio.run(all_of_them())


def arms(base: Policy, trained: Policy) -> dict[str, Policy]:
    """The policies of the transplant's series, `MODEL-ARM`."""
    return {
        "base-forbidden": replace(base, cells=0),
        "trained-forbidden": replace(trained, cells=0),
        "base-given-base": replace(base, proposes=True, silent=0),
        "base-given-trained": replace(trained, careless=base.careless),
        "trained-given-base": replace(base, careless=trained.careless),
        "base-as-many": replace(base, cells=trained.cells, pays=trained.pays, silent=0),
    }


def sample(folder: Path, game: NamedGame, player: str, episodes: list[Episode], chosen=True):
    """`Sample` of episodes, with what was chosen."""
    write(folder, episodes)
    found = read_sample(folder, (player,))
    return with_choices(found, game) if chosen else found


def samples(folder: Path, game: NamedGame, policies: dict[str, Policy], count=120):
    """`Sample` of what each policy plays, by name."""
    return {
        name: sample(folder / name, game, name, play(game, name, policy, count), chosen=False)
        for name, policy in policies.items()
    }


def write(folder, episodes):
    write_shard(Path(folder) / "00000.parquet", list(episodes))


def turn(seat, read, text):
    return Turn(seat, heard(read), said(text))


BASE, TRAINED = Policy(1, careless=0.1), Policy(9, "best")


def write_run(folder, parameters=None, base=BASE, trained=TRAINED, steps=5):
    """A run in which asking pays, and is learnt."""
    game = game_of(**_hashable(parameters or GAMES["matching"]))
    count = game.parameters.eval_count
    for step in range(steps):
        share = step / max(steps - 1, 1)
        policy = replace(trained, cells=base.cells + share * 2, careless=base.careless * (1 - share))
        rollouts = play(game, "policy", policy, 8, step=step, samples=4, purpose="train")
        write(folder / f"data/rollouts/step-{step}", rollouts)
    played = folder / "data/episodes/matching"
    told = {"base-asks-on": replace(base, cells=9), "base-asks-unknown": replace(base, cells=9, order="best")}
    models = {"base": base, "trained": trained, **told}
    for player, policy in models.items():
        write(played / "held-out" / player, play(game, player, policy, count))
    for player in ("own-view", "bayes", "asks-all-random", "optimal"):
        write(played / "held-out" / player, play(game, player, count=count))
    for name, policy in arms(base, trained).items():
        model, _, arm = name.partition("-")
        write(played / "transplant" / name, play(game, model, policy, 110, arm=arm))
    for name in CHANGES:
        other = with_parameters(game, {**game.parameters.model_dump(), **CHANGES[name].parameters}, 0)
        for player in ("base", "trained", "optimal"):
            played_there = play(
                other, player, models.get(player), 20, arm=name, partner=CHANGES[name].partner or "scripted"
            )
            write(played / "transfer" / name / player, played_there)
    people = play(game_of(size=8, selection="dialop"), "humans", Policy(3), 10, partner="scripted")
    for episode in people:
        episode.seating = dict.fromkeys(episode.seating, "humans")
    people[0].turns.insert(2, turn(PARTNER, "", f"[message] {LONG_WORDS}"))
    write(played / "human-boards/humans", people)
    write(played / "human-boards/bayes", play(game_of(size=8, selection="dialop"), "own-view", count=10))


def _hashable(parameters):
    return {name: tuple(value) if isinstance(value, list) else value for name, value in parameters.items()}
