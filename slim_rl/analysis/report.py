"""What was found, for people as one HTML page and for machines as metrics and a table of the training."""

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from slim_rl.analysis import figures, statistics, verdict
from slim_rl.analysis.measures import AGENT, MEASURES, TALK_MEASURES, Measure, Sample, title
from slim_rl.analysis.shyness import KINDS, Shyness
from slim_rl.analysis.statistics import Estimate, paired_difference, trend
from slim_rl.config import MatchingConfig
from slim_rl.rollout.episode import Episode

QUESTION = "Does a language model learn to ask questions when only asking pays?"
CURVES = ("reward", "questions", "useful_questions", "oracle_given_information")
"""What is followed over training."""


@dataclass(frozen=True, eq=False)
class Findings:
    """All that a report is made of."""

    training: Sample
    held_out: Mapping[str, Sample]
    """By player; `base`, `trained` and `bayes` are among them."""
    human_boards: Mapping[str, Sample]
    shyness: Mapping[str, Shyness] = field(default_factory=dict)
    """By kind of question; empty if the partner was not probed."""
    bills: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What calls to a paid partner came to, by stage."""

    @cached_property
    def verdict(self) -> verdict.Verdict:
        return verdict.judge(*(self.held_out[player].episodes for player in ("base", "trained", "bayes")))

    @cached_property
    def trends(self) -> dict[str, Estimate]:
        return {name: trend(self.training.episodes, name) for name in CURVES}


def training_table(findings: Findings) -> pd.DataFrame:
    """A row a training step: `step` and the mean of each of CURVES over all episodes that were played."""
    return findings.training.episodes.groupby("step")[list(CURVES)].mean().round(6).reset_index()


def metrics(findings: Findings) -> dict[str, Any]:
    """Numbers by player and what follows from them, rounded to 6 digits; None where there is none."""
    base, trained = (findings.held_out[player] for player in ("base", "trained"))
    found = findings.verdict

    def ratio(name: str) -> float:
        before, after = base.estimates[name].mean, trained.estimates[name].mean
        return after / before if before else math.nan

    comparison = {
        "games": found.gain.games,
        "questions_ratio": ratio("questions"),
        "useful_questions_ratio": ratio("useful_questions"),
        **_spread("questions_difference", paired_difference(trained.episodes, base.episodes, "questions")),
        **_spread("useful_questions_difference", found.asks),
        **_spread("reward_difference", found.gain),
        "reward_difference_in_standard_errors": found.gain.mean / found.gain.se
        if found.gain.se
        else math.nan,
        **_spread("reward_over_no_question_player", found.pays),
        **_spread("leak", found.leak),
    }
    training = training_table(findings).iloc[-1].to_dict()
    for name, change in findings.trends.items():
        training |= _spread(f"{name}_trend", change)
    return _plain(
        {
            **{player: _numbers(sample, MEASURES) for player, sample in findings.held_out.items()},
            "human_boards": {
                player: _numbers(sample, TALK_MEASURES) for player, sample in findings.human_boards.items()
            },
            "comparison": comparison,
            "training": {**training, "failed": findings.training.failed},
            "verdict": found.text,
            "shyness": {
                kind: {
                    "questions": of_kind.questions,
                    **_spread("unasked", of_kind.unasked),
                    **_spread("wrong", of_kind.wrong),
                    **_spread("withheld", of_kind.withheld),
                }
                for kind, of_kind in findings.shyness.items()
            },
            **({"partner": findings.bills} if findings.bills else {}),
        }
    )


def _numbers(sample: Sample, shown: Iterable[Measure]) -> dict[str, float]:
    numbers = {measure.name: sample.estimates[measure.name].mean for measure in shown}
    reward = _spread("reward", sample.estimates["reward"])
    return {**numbers, **reward, "episodes": len(sample.episodes), "failed": sample.failed}


def _spread(name: str, value: Estimate) -> dict[str, float]:
    return {name: value.mean, f"{name}_se": value.se, f"{name}_low": value.low, f"{name}_high": value.high}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in sorted(value.items())}
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def draw(findings: Findings) -> dict[str, Figure]:
    """The figures by file name."""
    held_out = findings.held_out
    return {
        "training": figures.training_figure(
            findings.training.episodes, held_out["bayes"].estimates["reward"]
        ),
        "questions": figures.questions_figure(held_out["base"].episodes, held_out["trained"].episodes),
        "held-out": figures.players_figure(held_out),
        "human-boards": figures.players_figure(findings.human_boards),
    }


class Dialogue(NamedTuple):
    """An episode to show, and why it is the one shown."""

    rule: str
    episode: Episode


def choose_dialogues(sample: Sample, episodes: Iterable[Episode]) -> list[Dialogue]:
    """A typical, the best and a bad episode of `sample`, found among `episodes`, by fixed rules."""
    frame = sample.episodes.assign(
        off_reward=(sample.episodes["reward"] - sample.episodes["reward"].median()).abs(),
        off_questions=(sample.episodes["questions"] - sample.episodes["questions"].median()).abs(),
    )
    rules = {
        "Typical: the reward nearest to the median, then the number of questions nearest to its": (
            ["off_reward", "off_questions", "episode_id"],
            [True, True, True],
        ),
        "Best: the highest reward, then the most useful questions": (
            ["reward", "useful_questions", "episode_id"],
            [False, False, True],
        ),
        "Bad: the lowest reward, then the fewest useful questions": (
            ["reward", "useful_questions", "episode_id"],
            [True, True, True],
        ),
    }
    chosen: dict[str, str] = {}
    for rule, (columns, ascending) in rules.items():
        ranked = frame[~frame["episode_id"].isin(chosen)].sort_values(columns, ascending=ascending)
        chosen |= dict.fromkeys(ranked["episode_id"].head(1), rule)
    shown = {e.episode_id: e for e in episodes if e.episode_id in chosen and e.status != "failed"}
    return [Dialogue(rule, shown[episode_id]) for episode_id, rule in chosen.items()]


def render(
    findings: Findings,
    dialogues: Iterable[Dialogue],
    figure_folder: Path,
    board: MatchingConfig,
    parameters: Mapping[str, Any],
) -> str:
    """The report: one HTML page that needs no other file and no network.

    Args:
        figure_folder: holds the figures of `draw` as SVG.
        parameters: of the run, by dotted name.
    """

    def picture(name: str) -> str:
        return base64.b64encode((figure_folder / f"{name}.svg").read_bytes()).decode()

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        question=QUESTION,
        findings=findings,
        verdict=findings.verdict,
        measures=MEASURES,
        talk_measures=TALK_MEASURES,
        title=title,
        agent=AGENT,
        dialogues=list(dialogues),
        kinds=KINDS,
        picture=picture,
        board=board,
        parameters=parameters,
        steps=findings.training.episodes["step"].nunique(),
        window=figures.WINDOW,
        min_episodes=figures.MIN_EPISODES,
        min_games=verdict.MIN_GAMES,
        resamples=statistics.RESAMPLES,
    )
