"""Stage `analyze`: metrics, figures and the report."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from slim_rl.analysis.dialogues import choose, to_json
from slim_rl.analysis.figures import save
from slim_rl.analysis.findings import Findings, metrics, plain, tables
from slim_rl.analysis.intervention import read_intervention
from slim_rl.analysis.matches import read_matches
from slim_rl.analysis.measures import read_players, read_sample
from slim_rl.analysis.report import Provenance, draw, draw_matches, render, render_matches
from slim_rl.analysis.selfplay import read_selfplay
from slim_rl.analysis.shyness import shyness
from slim_rl.config import Config, load_config
from slim_rl.errors import told_in_a_sentence
from slim_rl.files import write_whole

ROLLOUTS, EPISODES, REPORTS = Path("data/rollouts"), Path("data/episodes"), Path("reports")


def main() -> None:
    config = load_config()
    if config.game == "matching":
        report_matching(config)
    else:
        report_matches(config)


def report_matches(config: Config) -> None:
    found = read_matches(EPISODES, ROLLOUTS)
    for name, figure in draw_matches(found).items():
        save(figure, REPORTS / "figures", name)
    for name, table in found.tables.items():
        _write(f"data/{name}.csv", table.to_csv(index=False))
    _write("metrics.json", json.dumps(plain(found.metrics), indent=2, sort_keys=True, allow_nan=False) + "\n")
    for ending in ("md", "html"):
        page = render_matches(
            f"matches.{ending}.j2", found, config.game, REPORTS / "figures", provenance(config)
        )
        _write(f"report.{ending}", page)


def report_matching(config: Config) -> None:
    held_out = read_players(EPISODES / "held-out", ("base", "trained", "bayes"), config.threads)
    arms = EPISODES / "intervention"
    findings = Findings(
        training=read_sample(ROLLOUTS, config.threads),
        held_out=held_out,
        human_boards=read_players(EPISODES / "human-boards", processes=config.threads),
        intervention=read_intervention(read_players(arms, (), config.threads), held_out)
        if arms.exists()
        else None,
        like_people=config.board.selection == "dialop" and config.board.size == 8,
        shyness=shyness(EPISODES / "partner/probe"),
        selfplay=read_selfplay(EPISODES),
        bills=read_bills(training=ROLLOUTS, evaluation=EPISODES),
    )
    for name, figure in draw(findings).items():
        save(figure, REPORTS / "figures", name)
    for name, table in tables(findings).items():
        _write(f"data/{name}.csv", table.to_csv(index=False))
    _write("metrics.json", json.dumps(metrics(findings), indent=2, sort_keys=True, allow_nan=False) + "\n")
    dialogues = to_json(choose(held_out, findings.human_boards.get("humans"), findings.training))
    where = findings, REPORTS / "figures", config.board, provenance(config)
    _write("report.md", render("report.md.j2", *where))
    _write("report.html", render("report.html.j2", *where, dialogues))


def provenance(config: Config) -> Provenance:
    """Every parameter, the commit of the code, and DVC's hashes of what the report rests on."""
    return Provenance(dict(_flat(config.model_dump(mode="json"))), _commit(), _hashes(Path("dvc.lock")))


def _flat(values: dict[str, Any], prefix: str = ""):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _commit() -> str:
    """The commit of the code, and whether code or parameters differ from it; "unknown" outside of git."""
    commands = ["git rev-parse HEAD", "git status --porcelain -- slim_rl stages params.yaml dvc.yaml"]
    try:
        done = [
            subprocess.run(c.split(), capture_output=True, text=True, check=True).stdout for c in commands
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done[0].strip() + (" with changes" if done[1].strip() else "")


def _hashes(lock: Path) -> dict[str, str]:
    if not lock.exists():
        return {}
    stages = yaml.safe_load(lock.read_text(encoding="utf-8")).get("stages", {})
    names = ("games", "base_model", "train", "evaluate")
    outs = [out for name in names for out in stages.get(name, {}).get("outs", [])]
    return {out["path"]: out["md5"] for out in outs if "md5" in out}


def read_bills(**folders: Path) -> dict[str, dict]:
    """Of the stages that asked a paid partner."""
    files = {stage: folder / "partner.json" for stage, folder in folders.items()}
    return {stage: json.loads(file.read_text()) for stage, file in files.items() if file.exists()}


def _write(name: str, text: str) -> None:
    write_whole(REPORTS / name, lambda part: part.write_text(text, encoding="utf-8"))


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
