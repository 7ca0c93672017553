"""Stage `analyze`: metrics, figures and the report."""

import json
from pathlib import Path

from slim_rl.analysis.figures import save
from slim_rl.analysis.measures import read_players, read_sample
from slim_rl.analysis.report import Findings, choose_dialogues, draw, metrics, render, training_table
from slim_rl.analysis.shyness import shyness
from slim_rl.config import load_config
from slim_rl.errors import told_in_a_sentence
from slim_rl.rollout.store import read_episodes, write_whole

ROLLOUTS, EPISODES, REPORTS = Path("data/rollouts"), Path("data/episodes"), Path("reports")


def main() -> None:
    config = load_config()
    findings = Findings(
        training=read_sample(ROLLOUTS),
        held_out=read_players(EPISODES / "held-out", required=("base", "trained", "bayes")),
        human_boards=read_players(EPISODES / "human-boards"),
        shyness=shyness(EPISODES / "partner/probe"),
        bills=read_bills(training=ROLLOUTS, evaluation=EPISODES),
    )
    for name, figure in draw(findings).items():
        save(figure, REPORTS / "figures", name)
    dialogues = choose_dialogues(
        findings.held_out["trained"], read_episodes(EPISODES / "held-out" / "trained")
    )
    parameters = {
        "seed": config.seed,
        **{f"board.{name}": value for name, value in config.board.model_dump().items()},
    }
    page = render(findings, dialogues, REPORTS / "figures", config.board, parameters)
    table = training_table(findings).to_csv(index=False)
    _write("metrics.json", json.dumps(metrics(findings), indent=2, sort_keys=True, allow_nan=False) + "\n")
    _write("plots/training.csv", table)
    _write("report.html", page)


def read_bills(**folders: Path) -> dict[str, dict]:
    """Of the stages that asked a paid partner."""
    files = {stage: folder / "partner.json" for stage, folder in folders.items()}
    return {stage: json.loads(file.read_text()) for stage, file in files.items() if file.exists()}


def _write(name: str, text: str) -> None:
    write_whole(REPORTS / name, lambda part: part.write_text(text, encoding="utf-8"))


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
