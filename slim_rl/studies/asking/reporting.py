"""The study's report: episodes in, figures, tables, metrics and pages out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slim_rl.analysis import page
from slim_rl.analysis.comparison import Column, Compared, Point
from slim_rl.studies.asking import figures, verdict
from slim_rl.studies.asking.boards import sample_of_dialogues
from slim_rl.studies.asking.findings import NAMES, Findings, metrics, tables
from slim_rl.studies.asking.intervention import FORBIDDEN, FREE, MODELS, Intervention, read_intervention
from slim_rl.studies.asking.measures import MEASURES, TALK_MEASURES, Sample, read_players, read_sample, title
from slim_rl.studies.asking.parameters import FAITHFUL, board_of
from slim_rl.studies.asking.selfplay import MEASURES as SEAT_MEASURES
from slim_rl.studies.asking.selfplay import PAIRINGS, read_selfplay
from slim_rl.studies.asking.shyness import KINDS, shyness
from slim_rl.studies.study import Found, Report

QUESTION = "Does a language model learn to ask questions when only asking pays?"
_COMPARED = Compared(
    columns=(
        Column("Questions, base", "base.questions", ".2f"),
        Column("trained", "trained.questions", ".2f"),
        Column("Reward, base", "base.reward"),
        Column("trained", "trained.reward"),
        Column("difference", "comparison.reward_difference", "+.3f"),
        Column("Useful questions, difference", "comparison.useful_questions_difference", "+.2f"),
        Column("Oracle given information", "trained.oracle_given_information"),
        Column("No-question Bayes", "bayes.reward"),
        Column("Forbidden to ask, it loses", "intervention.trained.worth_of_asking", "+.3f"),
        Column("Uses answers better", "intervention.uses_answers_better", "+.3f"),
    ),
    points=(Point("", "base.reward", "trained.reward", "bayes.reward"),),
    mark="The diamond is the no-question Bayesian player.",
)


def report(found: Found) -> Report:
    """Raises UserError: base, trained and `bayes` have no episodes on held-out boards, or training has none."""
    findings = read_findings(found)
    curves = page.thinned(findings.curves, page.MAX_POINTS)
    drawn = {
        "training": figures.training_figure(curves, findings.lines),
        "held-out": figures.players_figure(findings.held_out),
        "human-boards": figures.players_figure(findings.human_boards),
        "uses": figures.uses_figure(curves),
    }
    if findings.intervention:
        drawn["intervention"] = figures.intervention_figure(findings.intervention)
    return Report(
        QUESTION,
        findings.verdict.text,
        drawn,
        tables(findings),
        metrics(findings),
        Path(__file__).parent,
        dict(
            findings=findings,
            judged=findings.verdict,
            dialogues=sample_of_dialogues(findings.held_out, findings.human_boards.get("humans"), findings.training),
            board=board_of(found.game),
            title=title,
            measures=MEASURES,
            talk_measures=TALK_MEASURES,
            models=MODELS,
            free=FREE,
            forbidden=FORBIDDEN,
            names=NAMES,
            shy_kinds=KINDS,
            pairings=PAIRINGS,
            seat_measures=SEAT_MEASURES,
            steps=findings.training.episodes["step"].nunique(),
            min_games=verdict.MIN_GAMES,
        ),
    )


def read_findings(found: Found) -> Findings:
    held_out = read_players(found.episodes / "held-out", ("base", "trained", "bayes"), found.processes)
    given = board_of(found.game)
    return Findings(
        training=read_sample(found.rollouts, ("policy",), found.processes, found.game.name),
        held_out=held_out,
        human_boards=read_players(found.episodes / "human-boards", processes=found.processes),
        intervention=_intervention(found, held_out),
        like_people=all(getattr(given, name) == value for name, value in FAITHFUL.items()),
        shyness=shyness(found.episodes / "partner/probe"),
        selfplay=read_selfplay(found.episodes),
    )


def _intervention(found: Found, held_out: dict[str, Sample]) -> Intervention | None:
    folder = found.episodes / "intervention"
    if not folder.exists():
        return None
    arms = read_sample(folder, MODELS, found.processes).episodes
    return read_intervention(arms, {model: held_out[model].episodes for model in MODELS})


def compared(metrics: Sequence[Mapping[str, Any]]) -> Compared:
    return _COMPARED
