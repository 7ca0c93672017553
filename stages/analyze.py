"""Stage `analyze`: the report of each game's study, with metrics, figures and tables, and the model's card."""

import json
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from slim_rl.analysis import page
from slim_rl.analysis.figures import health_figure, save
from slim_rl.analysis.page import Provenance, plain
from slim_rl.config import Config
from slim_rl.core.parameters import flat
from slim_rl.evaluation.study import Report, Results
from slim_rl.games import NamedGame, file_name, load_games
from slim_rl.rollout.shards import BILLS, HELD_OUT_CSV, MACHINE
from slim_rl.runtime.cli import run_stage
from slim_rl.runtime.files import write_text
from slim_rl.studies import load_study, parameters_of
from stages.card import model_card
from stages.dependencies import parameters_of_the_run

ROLLOUTS, EPISODES, REPORTS = Path("data/rollouts"), Path("data/episodes"), Path("reports")
TIMES = ("tokens_sampled", "tokens_trained", "seconds_playing", "seconds_updating")
TRAINING = REPORTS / "training"
HEALTH = ("loss", "entropy", "entropy_loss", "kl", "kl_loss", "grad_norm", "clipped_fraction", "logprob_gap_mean",
          "logprob_gap_p99")  # fmt: skip


def main() -> None:
    config = parameters_of_the_run()
    games = load_games(config.games, config.seed)
    origin = provenance(config)
    for folder in ("figures", "print"):
        (REPORTS / folder).mkdir(parents=True, exist_ok=True)  # an output, also if it is empty
    by_game = {name: report(game, config, origin, alone=len(games) == 1) for name, game in games.items()}
    if len(games) > 1:
        write_index(by_game, origin)
    metrics = plain(by_game if len(games) > 1 else by_game[next(iter(games))])
    if origin.bills:
        metrics["bills"] = plain(origin.bills)
    write_text(REPORTS / "metrics.json", json.dumps(metrics, indent=2, sort_keys=True, allow_nan=False) + "\n")
    write_text(REPORTS / "model-card.md", model_card(config, by_game, origin.commit, origin.training_time))
    short = plain({name: summary(one) for name, one in by_game.items()} if len(games) > 1 else summary(metrics))
    write_text(REPORTS / "summary.json", json.dumps(short, indent=2, allow_nan=False) + "\n")


def summary(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What fits a row of DVC's tables: reward, questions, their correlations, the verdict; what the study has of it."""
    names = {
        "reward": ("trained.reward",),
        "base_reward": ("base.reward",),
        "gain": ("comparison.gain", "comparison.reward_difference"),
        "question_count": ("trained.question_count", "trained.calls"),
        "base_question_count": ("base.question_count", "base.calls"),
        "pearson_steps": ("question_reward.training_steps.pearson",),
        "pearson_held_out": ("question_reward.held_out.trained.pearson",),
        "pearson_same_task": ("question_reward.same_task.pearson",),
        "verdict": ("outcome", "verdict"),
    }
    values = dict(flat(metrics))
    return {short: values[long[0]] for short, every in names.items() if (long := [n for n in every if n in values])}


def report(game: NamedGame, config: Config, origin: Provenance, alone: bool) -> dict[str, Any]:
    """Write the figures, tables and page of a game's study; returns its metrics.

    Args:
        alone: whether the page is `reports/report.html`; otherwise it is in `reports/data/GAME`.
    """
    study, name = game.taskset.study, file_name(game.name)
    data = REPORTS / "data" if alone else REPORTS / "data" / name
    figures, prints = (REPORTS / folder if alone else REPORTS / folder / name for folder in ("figures", "print"))
    results = Results(game, parameters_of(study, config.studies), EPISODES / name, ROLLOUTS)
    made: Report = load_study(study, "reporting").report(results)
    for title, figure in made.figures.items():
        save(figure, figures / f"{title}.svg")
        save(figure, prints / f"{title}.png")
    health = training_health()
    if len(health):
        save(health_figure(health), figures / "health.svg")
    tables = {**made.tables, **held_out(game), **({"health": health} if len(health) else {})}
    for title, table in tables.items():
        write_text(data / f"{title}.csv", table.to_csv(index=False))
    text = page.render(
        made.templates,
        figures,
        tables,
        origin,
        question=made.question,
        verdict=made.verdict,
        data_path=data,
        health=len(health) > 0,
        **made.values,
    )
    write_text((REPORTS if alone else data) / "report.html", text)
    return {**made.metrics, "verdict": made.verdict, "study": study, "game": game.name}


def training_health() -> pd.DataFrame:
    """HEALTH by training step, what was logged of it: `step`, and a column for each."""
    curves = _curves(HEALTH)
    return pd.concat(curves, axis=1).reset_index() if curves else pd.DataFrame()


def training_time(config: Config) -> str:
    """How long the training took, on what, its tokens a second, and which steps had a larger learning rate before a
    divergence; "" where it did not say."""
    curves = {str(curve.name): curve.sum() for curve in _curves(TIMES)}
    if not curves.keys() >= set(TIMES) or not (ROLLOUTS / MACHINE).exists():
        return ""
    sampled, trained, playing, updating = (curves[name] for name in TIMES)
    return (
        f"Training took {(playing + updating) / 60:.1f} minutes on {(ROLLOUTS / MACHINE).read_text().strip()}: "
        f"{playing / 60:.1f} of play at {sampled / playing:,.0f} sampled tokens a second, and {updating / 60:.1f} of updates "
        f"at {trained / updating:,.0f} tokens a second." + _earlier_rate(config)
    )


def _earlier_rate(config: Config) -> str:
    for rates in _curves({"learning_rate"}):
        times = rates / [config.train.rate(step) for step in rates.index]
        if len(earlier := times[times > 1.001]):
            rate = earlier.max() * config.train.learning_rate
            return f" Steps 1 to {earlier.index.max() + 1} were trained at the learning rate {rate:g}, which diverged later."
    return ""


def _curves(names: Collection[str]) -> list[pd.Series]:
    """The curves of the training that were logged, by step."""
    files = [path for path in sorted(TRAINING.rglob("*.tsv")) if path.stem in names]
    return [pd.read_csv(path, sep="\t").set_index("step")[path.stem] for path in files]


def held_out(game: NamedGame) -> dict[str, pd.DataFrame]:
    """The table `held_out`: what the game's held-out tasks earned while SLIME trained, if it evaluated."""
    path, prefix = ROLLOUTS / HELD_OUT_CSV, f"env/{game.name}/"
    if not path.exists():
        return {}
    table = pd.read_csv(path)
    own = [name for name in table.columns if name.startswith(prefix)]
    return {"held_out": table[["step", *own]].rename(columns=lambda name: name.removeprefix(prefix))}


def write_index(metrics: Mapping[str, Mapping[str, Any]], origin: Provenance) -> None:
    """`reports/report.html` with a link to each game's report."""
    games = [
        {"name": name, "verdict": found["verdict"], "page": f"data/{file_name(name)}/report.html"}
        for name, found in metrics.items()
    ]
    template = page.template("index.html.j2", REPORTS / "figures")
    text = template.render(question="What did training change?", games=games, provenance=origin)
    write_text(REPORTS / "report.html", text)


def provenance(config: Config) -> Provenance:
    """Every parameter, the commit of the code, DVC's hashes of the data and models, and the bills."""
    parameters = dict(flat(config.model_dump(mode="json")))
    return Provenance(parameters, _commit(), _hashes(Path("dvc.lock")), _bills(), training_time(config))


def _commit() -> str:
    """The commit of the code, and whether code or parameters differ from it; "unknown" outside of git."""
    commands = ["git rev-parse HEAD", "git status --porcelain -- slim_rl stages params.yaml dvc.yaml"]
    try:
        done = [subprocess.run(c.split(), capture_output=True, text=True, check=True).stdout for c in commands]
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


def _bills() -> dict[str, dict[str, Any]]:
    """By service and stage, the calls to paid services."""
    bills: dict[str, dict[str, Any]] = {}
    for stage, folder in (("training", ROLLOUTS), ("evaluation", EPISODES)):
        if (folder / BILLS).exists():
            for service, bill in json.loads((folder / BILLS).read_text(encoding="utf-8")).items():
                bills.setdefault(service, {})[stage] = bill
    return bills


if __name__ == "__main__":
    run_stage(main, __doc__)
