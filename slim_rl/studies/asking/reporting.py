"""The study's report: episodes in, figures, tables, metrics and pages out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slim_rl.analysis import page
from slim_rl.analysis.comparison import CORRELATIONS, Column, Compared, Point
from slim_rl.evaluation.study import Report, Results
from slim_rl.games import NamedGame
from slim_rl.rollout.shards import began
from slim_rl.studies.asking import figures
from slim_rl.studies.asking.boards import sample_of_dialogues, typical_board
from slim_rl.studies.asking.choices import with_choices
from slim_rl.studies.asking.criteria import criteria
from slim_rl.studies.asking.findings import MIN_BOARDS, VARIED, Findings, metrics, tables
from slim_rl.studies.asking.measures import FOLDED, MEASURES, SHORT, Sample, read_players, read_sample, title
from slim_rl.studies.asking.parameters import board_of
from slim_rl.studies.asking.selfplay import MEASURES as SEAT_MEASURES
from slim_rl.studies.asking.selfplay import PAIRINGS, read_selfplay
from slim_rl.studies.asking.shyness import KINDS, shyness
from slim_rl.studies.asking.transfer import CHANGES
from slim_rl.studies.asking.transfer import changes as changed_games
from slim_rl.studies.asking.transplant import MODELS, Transplant, read_transplant
from slim_rl.studies.asking.verdict import judge, pooled_evidence

QUESTION = "Does a language model learn when to ask, and what?"
MAX_REPLAYED = 512
"""Boards on which a player's choices are judged."""


def report(results: Results) -> Report:
    """Raises UserError: base, trained and `bayes` have no episodes on held-out boards, or training has none."""
    findings = read_findings(results)
    curves = page.thinned(findings.curves, page.MAX_POINTS)
    drawn = {**findings.question_reward.figures, "training": figures.training_figure(curves, findings.held_out)}
    if not findings.follows.empty:
        drawn["follows"] = figures.follows_figure(findings.follows)
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
            typical_board=typical_board(findings.held_out),
            dialogues=sample_of_dialogues(findings.held_out, findings.human_boards.get("humans"), findings.training),
            board=board_of(results.game),
            criteria=criteria(),
            began=began(results.rollouts),
            title=title,
            measures=MEASURES,
            short=[m for m in MEASURES if m.name in SHORT],
            folded=FOLDED,
            replayed=MAX_REPLAYED,
            models=MODELS,
            varied=VARIED,
            min_boards=MIN_BOARDS,
            changes=dict(changed_games(results.game)),
            shy_kinds=KINDS,
            pairings=PAIRINGS,
            seat_measures=SEAT_MEASURES,
            steps=findings.training.episodes["step"].nunique(),
        ),
    )


def read_findings(results: Results) -> Findings:
    held_out = read_players(results.episodes / "held-out", ("base", "trained", "bayes"))
    training = read_sample(results.rollouts, ("policy",), results.game.name)
    human_boards = read_players(results.episodes / "human-boards")
    transfer = results.episodes / "transfer"
    changes = [name for name in CHANGES if all((transfer / name / model).exists() for model in MODELS)]
    return Findings(
        training=training,
        held_out={name: add_choices(sample, results.game) for name, sample in held_out.items()},
        human_boards=human_boards,
        transplant=_transplant(results, held_out),
        transfer={name: read_players(transfer / name) for name in changes},
        shyness=shyness(results.episodes / "partner/probe"),
        selfplay=read_selfplay(results.episodes),
    )


def add_choices(sample: Sample, game: NamedGame) -> Sample:
    """The sample with the columns of `choices`, on the first MAX_REPLAYED boards."""
    board = board_of(game)
    tasks = {task.game_id: task for task in game.taskset.tasks("evaluate", min(board.eval_count, MAX_REPLAYED))}
    p_known = 0.0 if "ignorant" in board.seating else board.p_partner
    episodes = with_choices(sample.episodes, dict(sample.dialogues()), tasks, game, p_known)
    return replace(sample, episodes=episodes)


def _transplant(results: Results, held_out: Mapping[str, Sample]) -> Transplant | None:
    folder = results.episodes / "transplant"
    if not folder.exists():
        return None
    arms = read_sample(folder, MODELS).episodes
    return read_transplant(arms, {model: held_out[model].episodes for model in MODELS})


def compared(metrics: Sequence[Mapping[str, Any]]) -> Compared:
    return Compared(_COLUMNS, _POINTS, _MARK, _pooled_verdict(metrics), table="training-intervals", curves=_CURVES)


def _pooled_verdict(metrics: Sequence[Mapping[str, Any]]) -> str:
    """By the same criteria, the run as the unit."""
    if len(metrics) < 2:
        return ""
    if any(run.get("criteria") != criteria().version for run in metrics):
        return f"Not pooled: some of these runs were not judged by the criteria of version {criteria().version}."
    prefix = "comparison."
    runs = [{n.removeprefix(prefix): v for n, v in run.items() if n.startswith(prefix)} for run in metrics]
    evidence = pooled_evidence(runs)
    outcomes = Counter(run.get("outcome") for run in metrics)
    each = "; ".join(f"{count}: {outcome}" for outcome, count in outcomes.most_common())
    errors = ", ".join(
        f"{what} {one.mean:+.3f} ± {one.se:.3f}"
        for what, one in (
            ("over the base model", evidence.gain),
            ("over the base model not allowed to stop", evidence.over_asking_on),
            ("over the same, told also what to ask for", evidence.over_asking_unknown),
            ("over the base model that asks what the two-step asker asks", evidence.over_asking_planned),
            ("below the best player", evidence.regret),
        )
        if one.se > 0
    )
    return f"{judge(evidence).text} Of {len(runs)} runs, {each}. Over runs, ± their standard error: {errors or 'no spread'}."


_COLUMNS = (
    Column("Reward: base model", "base.reward"),
    Column("Reward: trained model", "trained.reward"),
    Column("Reward: base, not allowed to stop", "base-asks-on.reward"),
    Column("Reward: the same, must ask for unknown scores", "base-asks-unknown.reward"),
    Column("Reward: base, asks what the two-step asker asks", "base-asks-planned.reward"),
    Column("Reward: two-step asker", "optimal.reward"),
    Column("Trained minus base not allowed to stop", "comparison.over_asking_on", "+.3f"),
    Column("Trained minus base that must ask for unknown scores", "comparison.over_asking_unknown", "+.3f"),
    Column("Regret to the best player", "comparison.regret", "+.3f"),
    Column("Questions: base model", "base.question_count", ".2f"),
    Column("Questions: trained model", "trained.question_count", ".2f"),
    Column("Correlation with patience or price: trained less base", "comparison.follows", "+.2f"),
    Column("Rank of the trained model's cells", "trained.rank", ".3f"),
    Column("Rank of the unknown ones among themselves", "trained.rank_unknown", ".3f"),
    Column("Share of unknown ones: base model", "base.unknown_share", ".0%"),
    Column("Share of unknown ones: trained model", "trained.unknown_share", ".0%"),
    Column("Gain kept in unseen wordings", "transfer.gain_kept", ".0%"),
    Column("Asks more", "transplant.asks_more", "+.3f"),
    Column("Asks better", "transplant.asks_better", "+.3f"),
    Column("Uses answers better", "transplant.uses_answers_better", "+.3f"),
    Column("Malformed messages: base model", "base.malformed", ".1%"),
    Column("Malformed messages: trained model", "trained.malformed", ".1%"),
    Column("Out of turns", "trained.truncated", ".1%"),
    *CORRELATIONS,
)
_POINTS = (Point("", "base.reward", "trained.reward", "optimal.reward"),)
_CURVES = {"reward": "reward", "question_count": "questions a game"}
_MARK = "The diamond is the two-step asker."
