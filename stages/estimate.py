"""What the services of a run will take, a Tinker server included, before anything is paid: calls, tokens, dollars and hours.

    python -m stages.estimate [PROFILE] [--set NAME=VALUE]

Scripts play a few boards in every seat, by the game's own rules and prompts; what they say is counted as often as the
stages play. Nobody knows beforehand how much the policy will ask. The rows "expected" are of policies that ask for all
numbers of things between none and as many as they may, equally often; the rows "at most" of one that always asks for as
many as it may, and on a Tinker server fills each turn. Groups that are played in place of those that a filter drops are
not counted, nor are retries.
"""

import asyncio
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from slim_rl.config import Config, checked, composed
from slim_rl.core.episode import Episode
from slim_rl.core.errors import UserError
from slim_rl.core.game import Demonstration
from slim_rl.core.message import Message, Tool, heard, said
from slim_rl.core.player import Constraint, Player
from slim_rl.evaluation.series import Evaluation, Series
from slim_rl.games import NamedGame, file_name, load_games
from slim_rl.players.chat import ChatMessage, Reply
from slim_rl.players.chat_player import ChatPlayer
from slim_rl.players.ledger import Ledger, price_of
from slim_rl.rollout.seating import Arm, PlayerMaker, Request, Seat, Seating, under
from slim_rl.rollout.shards import write_shard
from slim_rl.runtime.cli import argument_parser, told_in_a_sentence
from slim_rl.studies import load_study, parameters_of
from slim_rl.training.config import TINKER
from stages.run import settings

_FORMATS = {
    name: f"{{:,.{digits}f}}".format
    for name, digits in (("dialogues", 0), ("calls", 0), ("tokens", 0), ("dollars", 2), ("hours", 1))
}
BOARDS = 8
"""Tasks of a game that are played."""
_TOKEN = re.compile(r" ?[^\W\d_]{1,8}|\d{1,3}| ?[^\w\s]+\n*|_+|\s+")
"""About as GPT's vocabularies cut a text: words with the space before them, up to three digits, signs."""


class Row(NamedTuple):
    """What a stage takes of a service."""

    stage: str
    service: str
    policy: str
    """`expected` or `at most`."""
    dialogues: int
    calls: float
    tokens: float
    dollars: float | None
    """None if the price is unknown."""
    hours: float
    """The least that the service's limits allow."""
    limit: str
    """The one of them that binds."""


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("profile", nargs="?", help="the name of a file in conf/, without .yaml")
    parser.add_argument("--set", action="extend", default=[], type=settings, metavar="NAME=VALUE")
    options = parser.parse_args()
    with told_in_a_sentence():
        config = checked(composed(options.profile, dict(options.set)), options.profile or "params.yaml")
        rows = [*estimate(config), *estimate(config, most=True)]
        if not rows:
            raise UserError("No seat is taken by a service, so no call will be made.")
        table = pd.DataFrame(rows).astype({"dollars": float})
        print(table.to_string(index=False, na_rep="?", formatters=_FORMATS))
        dialogues = config.train.games_per_step * config.train.samples_per_game
        for row in rows:
            if row.stage == "train" and row.limit:
                minutes = row.hours * 60 * dialogues / row.dialogues
                print(
                    f"{row.policy}: a step of {dialogues} dialogues takes {minutes:.1f} minutes; {row.limit} limits it."
                )
        for sentence in missing_budgets(rows, config):
            print(sentence)


def missing_budgets(rows: Sequence[Row], config: Config) -> Iterator[str]:
    """A sentence for each row that a budget does not cover."""
    for row in rows:
        ours = row.service == TINKER
        budget = (config.tinker if ours else config.services[row.service]).max_cost_dollars
        if budget is not None and row.dollars is not None and row.dollars > budget:
            section = "tinker" if ours else f"services.{row.service}"
            yield (
                f"The stage {row.stage} costs about ${row.dollars:,.2f} ({row.policy}), but "
                f"{section}.max_cost_dollars is {budget:g}; raise it, or let it play less."
            )


class NotEstimated(UserError):
    """No script can play a seat in the estimate."""


def check(config: Config) -> None:
    """Raises UserError: what a stage is expected to cost is more than its budget. What cannot be estimated may run."""
    try:
        rows = estimate(config)
    except NotEstimated as error:
        print(f"{error} Its budget holds all the same.")
        return
    for sentence in missing_budgets(rows, config):
        raise UserError(f"{sentence} `python -m stages.estimate` says what else the run takes.")


def estimate(config: Config, most: bool = False) -> list[Row]:
    """A row for each stage and service.

    Args:
        most: with a policy that asks as much as it may.

    Raises:
        NotEstimated: no script plays the seat of the policy or of a service.
    """
    return asyncio.run(_estimate(config, most))


async def _estimate(config: Config, most: bool) -> list[Row]:
    games = load_games(config.games, config.seed)
    bills = {stage: Bill(config, most, stage) for stage in ("train", "evaluate")}
    for number, game, count in _training(config, games):
        tasks = list(islice(game.taskset.tasks("train", BOARDS), min(count, BOARDS)))
        requests = [Request(f"{number}/{task.game_id}", game.name, task, game.parameters.seating) for task in tasks]
        await bills["train"].play(requests, bills["train"].seating(game, game.parameters.seating), count)
    with tempfile.TemporaryDirectory() as folder:
        for game in games.values():
            if any(name.startswith("service:") for name in game.parameters.seating):
                await _evaluate(config, game, Path(folder) / file_name(game.name), bills["evaluate"])
    return [row for stage, bill in bills.items() for row in bill.rows(stage)]


def _training(config: Config, games: Mapping[str, NamedGame]) -> Iterator[tuple[int, NamedGame, int]]:
    """Games that are played while the policy is trained, and how often; a game may come several times."""
    train, weights = config.train, sum(game.parameters.weight for game in games.values())
    plays = [
        (game, round(train.steps * train.games_per_step * train.samples_per_game * game.parameters.weight / weights))
        for game in games.values()
    ]
    if train.backend == "slime" and config.slime.evaluate_every:
        times = 1 + train.steps // config.slime.evaluate_every
        plays += [(game, times * game.parameters.eval_count) for game in games.values()]
    for benchmark in config.evaluate.benchmarks.values():
        times = 1 + -(-train.steps // (config.evaluate.every_steps or 1))
        game = load_games({benchmark.game: benchmark.parameters}, config.seed)[benchmark.game]
        plays.append((game, times * benchmark.tasks * benchmark.samples))
    for number, (game, count) in enumerate(plays):
        if train.backend == "tinker" or any(name.startswith("service:") for name in game.parameters.seating):
            yield number, game, count


async def _evaluate(config: Config, game: NamedGame, folder: Path, bill: "Bill") -> None:
    """Play the study's plan on a few boards. Each stands for many tasks, with ids of their own."""
    count = game.parameters.eval_count
    boards = cycle(game.taskset.tasks("evaluate", min(count, BOARDS)))
    tasks = [replace(board, game_id=f"{board.game_id}-{n}") for n, board in enumerate(islice(boards, count))]
    study = parameters_of(game.taskset.study, config.studies)
    none: Any = None
    run = _Rehearsal(
        game, study, config.evaluate, config.model, config.seed, folder, none, none, tasks,
        {"base": Path(), "trained": Path()}, {}, bill,
    )  # fmt: skip
    series = load_study(game.taskset.study, "plan").series(run)
    needed = {name for one in series for name in one.after}
    for one in series:
        requests = one.requests()
        if one.name not in needed and not any("service:" in name for r in requests[:1] for name in r.seating):
            continue
        episodes = await bill.play(requests, await one.seating(), len(requests))
        if one.name in needed and episodes:
            played = [
                replace(episode, episode_id=request.episode_id, game_id=request.task.game_id)
                for request, episode in zip(requests, cycle(episodes), strict=False)
            ]
            write_shard(one.folder / "00000.parquet", played)


class Bill:
    """What the services of a stage take, in the dialogues played so far."""

    def __init__(self, config: Config, most: bool, stage: str):
        self._config, self._most = config, most
        self._on_tinker = stage == "train" and config.train.backend == "tinker"
        self._totals: dict[str, dict[str, float]] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._place = 0
        """In the order of the requests, the one that is played. The later it comes, the more its policies ask."""

    async def play(self, requests: Sequence[Request], seating: Seating, count: int) -> list[Episode]:
        """Play the first few requests, and count them `count` times."""
        played = requests[:BOARDS]
        self._ledgers = {}
        episodes = []
        for self._place, request in enumerate(played):
            episodes.append(await seating.play(request))
        for episode in episodes:
            if episode.status == "failed":
                raise UserError(f"The game {episode.game} could not be played by scripts: {episode.error}.")
        for name, ledger in self._ledgers.items():
            totals = self._totals.setdefault(name, defaultdict(float))
            totals["dialogues"] += count
            for key, number in ledger.totals.items():
                totals[key] += number * count / len(played)
        return episodes

    def seating(self, game: NamedGame, names: Sequence[str], rules: Mapping[str, Arm] | None = None) -> Seating:
        """Scripts in the places of services, and of the models in `rules`."""
        makers: dict[str, PlayerMaker] = {name: self._chat(name) for name in names if name.startswith("service:")}
        models = {"policy": None, **{name: None for name in names if name.startswith("checkpoint:")}, **(rules or {})}
        makers |= {name: under(rule, self._policy) for name, rule in models.items()}
        return Seating({game.name: game}, makers, self._config.seed)

    def rows(self, stage: str) -> Iterator[Row]:
        policy = "at most" if self._most else "expected"
        for name, totals in self._totals.items():
            if name == TINKER:
                read, said, trained = (round(totals[f"{kind}_tokens"]) for kind in ("prompt", "completion", "trained"))
                paid = self._config.tinker.price
                cost = None if paid is None else paid.dollars(read, 0, said) + trained * paid.train / 1e6
                dialogues = round(totals["dialogues"])
                yield Row(stage, name, policy, dialogues, totals["calls"], read + said + trained, cost, 0.0, "")
                continue
            service = self._config.services[name]
            price = service.price or price_of(service.model)
            tokens = totals["prompt_tokens"], totals["completion_tokens"]
            # A call counts with the longest reply, as the service's own limit counts it.
            limited = totals["calls"], tokens[0] + totals["calls"] * service.max_reply_tokens
            limits = service.max_requests_per_minute, service.max_tokens_per_minute
            hours = {
                f"max_{kind}_per_minute": number / limit / 60
                for kind, number, limit in zip(("requests", "tokens"), limited, limits, strict=True)
                if limit
            }
            binds = max(hours, key=lambda limit: hours[limit], default="")
            dollars = None if price is None else price.dollars(round(tokens[0]), 0, round(tokens[1]))
            yield Row(
                stage, name, policy, round(totals["dialogues"]), totals["calls"], sum(tokens),
                dollars, hours.get(binds, 0.0), binds,
            )  # fmt: skip

    def _chat(self, name: str) -> PlayerMaker:
        def make(seat: Seat) -> Player:
            rules = seat.of.taskset.chat_rules(seat.name)
            if rules is None:
                raise UserError(f"The game {seat.of.name} has no rules for a chat model, so {name} cannot play it.")
            try:
                script = seat.of.taskset.player("scripted", seat.game, seat.name, seat.seed)
            except ValueError as error:
                raise NotEstimated(f"Nothing can be estimated where {name} plays {seat.of.name}: {error}.") from None
            ledger = self._ledgers.setdefault(name.removeprefix("service:"), Ledger(None, None, "estimate"))
            service: Any = _ScriptedService(script, ledger)
            return rules.around(ChatPlayer(service, rules.system, rules.repair, seat.seed))

        return make

    def _policy(self, seat: Seat) -> Player:
        demonstration = seat.of.taskset.demonstrate(seat.request.task, seat.name)
        if demonstration is None:
            raise NotEstimated(f"Nothing can be estimated for {seat.of.name}: no script plays the policy's seat.")
        turns = None if self._most else round(self._place / (BOARDS - 1) * len(demonstration.turns))
        player = _Demonstrator(demonstration, turns)
        if not self._on_tinker:
            return player
        ledger = self._ledgers.setdefault(TINKER, Ledger(None, None, "estimate"))
        turn = self._config.model.turn_tokens if self._most else None
        return _Metered(player, ledger, turn, bool(self._config.train.kl_coefficient))


class _ScriptedService:
    """Replies as a script, and counts what a service would charge."""

    def __init__(self, script: Player, ledger: Ledger):
        self._script, self.ledger = script, ledger

    async def reply(self, messages: Sequence[ChatMessage], seed: int) -> Reply:
        reply = (await self._script.respond(heard(messages[-1]["content"]))).text
        read = sum(_tokens(message["content"]) + 4 for message in messages)  # OpenAI adds about four a message
        self.ledger.add(calls=1, prompt_tokens=read, completion_tokens=_tokens(reply))
        return Reply(reply)


def _tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


class _Demonstrator(Player):
    """A policy that plays as the game demonstrates it, and takes one turn more whenever it could not end the game.

    Args:
        turns: that it takes before it ends the game; None: as many as it may, so it never ends it.
    """

    def __init__(self, shown: Demonstration, turns: int | None):
        self._shown, self._stop = shown, turns
        self._begins = ""
        self._before = self._turn = 0

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        turns, ends = self._shown.turns, [text for text in self._shown.closings[: self._turn + 1] if text]
        goes_on = self._stop is None or self._turn < min(self._stop, len(turns))
        ways = [*turns[: self._turn + 1][-1:], *ends[-1:]]
        ways = ways if goes_on else ways[::-1]
        text = next((text for text in ways if text.startswith(self._begins)), ways[0])
        if self._stop is not None and text in ends:
            self._stop = self._turn + 1
        self._begins = ""
        self.recall(observation, said(text))
        return said(text)

    def recall(self, observation: Sequence[Message], message: Message) -> None:
        self._before, self._turn = self._turn, self._turn + (message.text not in self._shown.closings)

    def take_back(self) -> None:
        self._turn = self._before

    def constrain(self, constraint: Constraint) -> None:
        self._begins = os.path.commonprefix(constraint.begins)  # noqa: RUF071


class _Metered(Player):
    """Counts what a Tinker server charges for a policy: each turn reads the dialogue again, and all of it is trained.

    Args:
        turn_tokens: of each turn; None: as the script speaks.
        reference: whether the base model reads it, too.
    """

    def __init__(self, player: Player, ledger: Ledger, turn_tokens: int | None, reference: bool):
        self._player, self._ledger, self._turn_tokens, self._reference = player, ledger, turn_tokens, reference
        self._length = 0

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        message = await self._player.respond(observation, tools)
        heard = sum(_tokens(part.text) + 4 for part in observation) + (0 if self._length else _tokens(str(tools)))
        own = self._turn_tokens or _tokens(message.written) + 4
        read = self._length + heard
        self._length = read + own
        self._ledger.add(
            calls=1,
            prompt_tokens=read + self._reference * (heard + own),
            completion_tokens=own,
            trained_tokens=heard + own,
        )
        return message


@dataclass(frozen=True)
class _Rehearsal(Evaluation):
    """An evaluation in which scripts play the checkpoints and the services."""

    bill: Bill

    def series(
        self, name: str, tasks: Any, seating: Sequence[str], rules: Mapping[str, Arm] | None = None,
        arm: str = "", game: NamedGame | None = None, *others: Any, **named: Any,
    ) -> Series:  # fmt: skip
        planned = super().series(name, tasks, seating, rules, arm, game, *others, **named)
        models: dict[str, Any] = dict.fromkeys(self.checkpoints) | dict(rules or {})

        async def seat() -> Seating:
            return self.bill.seating(game or self.game, seating, models)

        return replace(planned, seating=seat)


if __name__ == "__main__":
    main()
