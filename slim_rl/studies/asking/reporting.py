"""The study's report: episodes in, figures, tables, metrics and pages out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from slim_rl.analysis.comparison import CORRELATIONS, Column, Compared, Point
from slim_rl.evaluation.base_and_trained import MODELS
from slim_rl.evaluation.study import Report, Results
from slim_rl.games import NamedGame
from slim_rl.rollout.shards import began, read_dialogues
from slim_rl.studies.asking import choices, figures, selfplay
from slim_rl.studies.asking.boards import sample_of_dialogues, typical_board
from slim_rl.studies.asking.evidence import pooled_evidence
from slim_rl.studies.asking.findings import MIN_BOARDS, VARIED, Findings, metrics, tables
from slim_rl.studies.asking.measures import MEASURES, Sample, read_players, read_sample, title
from slim_rl.studies.asking.parameters import board_of
from slim_rl.studies.asking.plan import partner
from slim_rl.studies.asking.shyness import KINDS, shyness
from slim_rl.studies.asking.transfer import CHANGES
from slim_rl.studies.asking.transplant import Transplant, read_transplant
from slim_rl.studies.asking.verdict import CRITERIA, judge

MAX_REPLAYED = 512
"""Boards on which a player's choices are judged."""


def report(results: Results) -> Report:
    """Raises UserError: base, trained and `bayes` have no episodes on held-out boards, or training has none."""
    findings = read_findings(results)
    drawn = {
        **findings.question_reward.figures,
        "training": figures.training_figure(findings.curves, findings.held_out),
    }
    if not findings.follows.empty:
        drawn["follows"] = figures.follows_figure(findings.follows)
    values = dict(
        findings=findings,
        typical_board=typical_board(findings.held_out),
        dialogues=sample_of_dialogues(findings.held_out, findings.human_boards.get("humans"), findings.training),
        board=board_of(results.game),
        partner=partner(results.game),
        criteria=CRITERIA,
        began=began(results.rollouts),
        title=title,
        measures=MEASURES,
        replayed=MAX_REPLAYED,
        models=MODELS,
        varied=VARIED,
        min_boards=MIN_BOARDS,
        changes=CHANGES,
        shy_kinds=KINDS,
        pairings=selfplay.PAIRINGS,
        seat_measures=selfplay.MEASURES,
    )
    question = "Does a language model learn when to ask, and what?"
    text, templates = findings.verdict.text, Path(__file__).parent
    return Report(question, text, drawn, tables(findings), metrics(findings), templates, values)


def read_findings(results: Results) -> Findings:
    held_out = read_players(results.episodes / "held-out", ("base", "trained", "bayes"))
    training = read_sample(results.rollouts, ("policy",), results.game.name)
    transfer = results.episodes / "transfer"
    changes = [name for name in CHANGES if all((transfer / name / model).exists() for model in MODELS)]
    return Findings(
        training=training,
        held_out={name: with_choices(sample, results.game) for name, sample in held_out.items()},
        human_boards=read_players(results.episodes / "human-boards"),
        transplant=_transplant(results, held_out),
        transfer={name: read_players(transfer / name) for name in changes},
        shyness=shyness(results.episodes / "partner/probe"),
        selfplay=selfplay.read_selfplay(results.episodes),
    )


def with_choices(sample: Sample, game: NamedGame) -> Sample:
    """The sample with the columns of `choices`; missing without a dialogue, and beyond the first MAX_REPLAYED boards."""
    board, episodes = board_of(game), sample.episodes
    dialogues = dict(dialogue for shard in episodes["shard"].unique() for dialogue in read_dialogues(Path(shard)))
    tasks = {task.game_id: task for task in game.taskset.tasks("evaluate", min(board.eval_count, MAX_REPLAYED))}
    p_known = 0.0 if "ignorant" in board.seating else board.p_partner
    rows = [
        choices.choices(game.taskset.load(tasks[row.game_id]), row.seat, dialogues[row.episode_id], p_known)  # type: ignore[arg-type]
        if row.game_id in tasks and row.episode_id in dialogues
        else {}
        for row in episodes.itertuples(index=False)
    ]
    columns = pd.DataFrame(rows, columns=list(choices.COLUMNS), index=episodes.index, dtype=float)
    return replace(sample, episodes=episodes.assign(**columns))


def _transplant(results: Results, held_out: Mapping[str, Sample]) -> Transplant | None:
    folder = results.episodes / "transplant"
    if not folder.exists():
        return None
    arms = read_sample(folder, MODELS).episodes
    return read_transplant(arms, {model: held_out[model].episodes for model in MODELS})


def compared(metrics: Sequence[Mapping[str, Any]]) -> Compared:
    return Compared(
        _COLUMNS,
        [Point("", "base.reward", "trained.reward", "optimal.reward")],
        "The diamond is the two-step asker.",
        _pooled_verdict(metrics),
        table="training-intervals",
        curves={"reward": "reward", "question_count": "questions a game"},
    )


def _pooled_verdict(metrics: Sequence[Mapping[str, Any]]) -> str:
    """By the same criteria, the run as the unit."""
    if len(metrics) < 2:
        return ""
    if any(run.get("criteria") != CRITERIA.version for run in metrics):
        return f"Not pooled: some of these runs were not judged by the criteria of version {CRITERIA.version}."
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
    Column("Has to propose", "transplant.has_to_propose", "+.3f"),
    Column("Asks more", "transplant.asks_more", "+.3f"),
    Column("Asks better", "transplant.asks_better", "+.3f"),
    Column("Uses answers better", "transplant.uses_answers_better", "+.3f"),
    Column("Malformed messages: base model", "base.malformed", ".1%"),
    Column("Malformed messages: trained model", "trained.malformed", ".1%"),
    Column("Out of turns", "trained.truncated", ".1%"),
    *CORRELATIONS,
)
