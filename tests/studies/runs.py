"""Evaluations, episodes of runs that never were, on disk as the stages leave them, and the stage that reports on them."""

from contextlib import chdir
from pathlib import Path

import yaml

from slim_rl.core.episode import Episode, Turn
from slim_rl.core.message import Message, ToolCall, heard, said
from slim_rl.evaluation.config import EvaluateConfig
from slim_rl.evaluation.series import Evaluation, Models
from slim_rl.players.config import ModelConfig
from slim_rl.players.services import Services
from slim_rl.rollout.shards import write_shard
from slim_rl.studies import study_parameters
from stages import analyze

ECHO = "tests.echo"
SEATS = ("first", "second")
CHECKPOINTS = {name: Path(name) for name in ("base", "trained")}


def evaluation(game, study=None, tasks=(), folder=Path("episodes"), checkpoints=CHECKPOINTS, snapshots=(), **evaluate):
    """The evaluation of a game with these parameters of its study, by default its defaults."""
    config, model, services = EvaluateConfig(**evaluate), ModelConfig(), Services({}, "evaluate/test", None)
    study = study or study_parameters(game.taskset.study, {})
    return Evaluation(
        game, study, config, model, 0, folder, services, Models(config, model, None), tasks, checkpoints, dict(snapshots)
    )  # fmt: skip


def report_on(folder, games, **parameters):
    """Run the stage `analyze` in `folder`; returns `folder/reports`."""
    (folder / "params.yaml").write_text(yaml.safe_dump({"games": games, **parameters}))
    with chdir(folder):
        analyze.main()
    return folder / "reports"


def write(folder, episodes):
    write_shard(folder / "00000.parquet", list(episodes))


def solved(player, passed, samples=1, step=0, series="held-out", failed=0):
    """Episodes of a tool game; `passed[i]` of the samples of task i pass, and `failed` more samples fail."""
    for task, right in enumerate(passed):
        for sample in range(samples + failed):
            reward = float(sample < right)
            broken = ToolCall("add", status="invalid_json", raw="<tool_call>{</tool_call>")
            call = ToolCall("add", {"numbers": [task, 1]}, raw='<tool_call>{"name": "add"}</tool_call>')
            turns = [
                Turn("solver", heard(f"What is {task} + 1?"), Message("assistant", "", (call if reward else broken,))),
                Turn("solver", (Message("tool", f"Sum: {task + 1}"),), said(f"It is {task + 1}.")),
            ]
            metrics = {"turn_count": 2.0, "calls": 1.0, "calls.invalid_json": 1 - reward, "calls.unknown_tool": 0.0}
            name = f"{series}/{player}/{step}/held-{task}/{sample}"
            episode = Episode(name, f"held-{task}", ECHO, {"solver": player}, series, step=step)
            if sample >= samples:
                episode.status, episode.error = "failed", "StepTimeout: too slow"
            else:
                episode.turns, episode.rewards, episode.metrics = turns, {"solver": reward}, metrics
            yield episode


def write_solved(folder, base, trained, steps=5, **more):
    """A run of the tool game; see `solved`."""
    write(folder / f"data/episodes/{ECHO}/held-out/base", solved("base", base, **more))
    write(folder / f"data/episodes/{ECHO}/held-out/trained", solved("trained", trained, **more))
    for step in range(steps):
        right = [min(step, 4)] * 6
        write(folder / f"data/rollouts/{step}", solved("policy", right, 4, step, f"train/{step}"))


def match(one, other, rewards, game="kuhn", failed=0):
    """Games of two players, in which the first seat earns `rewards`; the first `failed` of them failed."""
    for number, reward in enumerate(rewards):
        name, seating = f"{one}-against-{other}", dict(zip(SEATS, (one, other), strict=True))
        episode = Episode(f"matches/{name}/{number}", f"g{number}", game, seating, "matches")
        if number < failed:
            episode.status, episode.error = "failed", "APIError: gone"
        else:
            episode.rewards = dict(zip(SEATS, (float(reward), -float(reward)), strict=True))
            illegal = {"first.illegal_moves": 0.0, "second.illegal_moves": 1.0}
            episode.metrics = {"turn_count": 5.0, "drawn": float(reward == 0), **illegal}
        yield episode


def write_matches(folder, results, game="kuhn", failed=0):
    """A run of a game with winners: `results` by pair are what the first of the two earns, from either seat; the first
    `failed` games of the base model in the first seat failed."""
    for (one, other), rewards in results.items():
        for a, b, earned in ((one, other, rewards), (other, one, [-r for r in rewards])):
            lost = failed if a == "base" else 0
            write(folder / f"data/episodes/{game}/matches/{a}-against-{b}", match(a, b, earned, game, lost))
    rollouts = [
        Episode(f"train/{step}/{n}", f"g{n}", game, dict.fromkeys(SEATS, "policy"), step=step,
                rewards={"first": 1.0, "second": -1.0}, metrics={"turn_count": 3.0, "drawn": 0.0})
        for step in range(4)
        for n in range(6)
    ]  # fmt: skip
    write(folder / "data/rollouts", rollouts)
