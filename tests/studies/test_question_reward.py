"""What a report says of questions and reward, in made games whose truth is known."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.formula.api import ols

from slim_rl.core.episode import Episode, Turn
from slim_rl.core.message import heard, said
from tests.studies.runs import report_on, write

TRUTHS = {  # what a call and the task add to the reward; what of the task the number of calls follows
    "calls cause reward": (0.05, 0.0, 0.0),
    "the task causes both": (0.0, 0.1, 1.0),
    "both": (0.02, 0.1, 1.0),
    "calls cost, and the task pays them back": (-0.02, 0.15, 1.0),
    "neither": (0.0, 0.0, 0.0),
}
SAYS = {
    "calls cause reward": "the task does not explain it all: on the same task one more call goes with +0.05",
    "the task causes both": "they do not show that a call pays: on the same task one more call goes with",
    "both": "the task does not explain it all: on the same task one more call goes with +0.02",
    "calls cost, and the task pays them back": "the task turns it around: on the same task one more call goes with -0.0",
    "neither": "nowhere do games with more calls clearly earn more or less",
}


def episodes(truth, player, tasks, samples=1, step=0):
    rng = np.random.default_rng([step, len(player)])
    of_call, of_task, followed = truth
    for task in range(tasks):
        ease = rng.normal()
        for sample in range(samples):
            calls = float(rng.poisson(np.exp(0.7 + 0.4 * followed * ease + (0.02 * step if of_call else 0))))
            reward = 0.4 + of_call * calls + of_task * ease + 0.05 * rng.normal()
            yield Episode(
                f"{player}/{step}/{task}/{sample}", f"{step}-{task}", "calculator", {"solver": player}, step=step,
                turns=[Turn("solver", heard("What is 1 + 1?"), said("2"))], rewards={"solver": reward},
                metrics={"turn_count": calls + 1, "calls": calls},
            )  # fmt: skip


@pytest.fixture(scope="module", params=TRUTHS)
def run(request, tmp_path_factory):
    folder, truth = tmp_path_factory.mktemp("made"), TRUTHS[request.param]
    for player in ("base", "trained", "guesses"):
        played = episodes(truth, player, 300)
        write(folder / f"data/episodes/calculator/held-out/{player}", played)
    for step in range(20):
        write(folder / f"data/rollouts/{step}", episodes(truth, "policy", 12, 6, step))
    curves = folder / "reports/training/plots/metrics"
    curves.mkdir(parents=True)
    logged = {
        "loss": (0.5, 0.25),
        "logprob_gap_mean": (1e-4, 2e-4),
        "tokens_sampled": (6000, 3000),
        "tokens_trained": (9000, 9000),
    }
    logged |= {"seconds_playing": (60, 30), "seconds_updating": (30, 60)}
    for name, (first, second) in logged.items():
        (curves / f"{name}.tsv").write_text(f"step\t{name}\n0\t{first}\n1\t{second}\n")
    (folder / "data/rollouts/machine.txt").write_text("2 cores of a kind\n")
    return request.param, report_on(folder, {"calculator": {}}, train={"steps": 20})


def test_the_page_says_what_is_true_and_nothing_else(run):
    truth, reports = run
    page = (reports / "report.html").read_text()
    [sentence] = re.findall(r"<p>(Calls and reward correlate .*?)</p>", page)
    assert [name for name, says in SAYS.items() if says in sentence] == [truth]
    assert page.index(sentence) < page.index("<table>") < page.index("<svg") and "over training steps" in sentence


def test_curves_of_the_loss_are_folded_and_what_the_training_took_is_said(run):
    reports = run[1]
    health = pd.read_csv(reports / "data/health.csv")
    [folded] = re.findall(r"<details><summary>Loss.*?</details>", (reports / "report.html").read_text(), re.DOTALL)
    assert "<svg" in folded and "The gap of log-probs" in folded
    assert list(health["loss"]) == [0.5, 0.25] and list(health["logprob_gap_mean"]) == [1e-4, 2e-4]
    assert (
        "Training took 3.0 minutes on 2 cores of a kind: 1.5 of play at 100 sampled tokens a second, and 1.5 of updates at "
        "200 tokens a second."
    ) in (reports / "report.html").read_text()


def test_the_numbers_are_those_of_other_lines(run):
    reports = run[1]
    found = json.loads((reports / "metrics.json").read_text())["question_reward"]
    rows = pd.read_csv(reports / "data/episodes.csv").rename(columns={"question_count": "x", "reward": "y"})
    assert list(rows.columns[:9]) == ["series", "player", "episode_id", "game_id", "step", "status", "x", "turn_count", "y"]  # fmt: skip
    training = rows[rows["series"] == "training"]
    steps = training.groupby("step")[["x", "y"]].mean()
    trained = rows[rows["player"] == "trained"]
    later = training[training["step"] >= 10]
    groups = later.groupby(["step", "game_id"])[["x", "y"]]
    for name, points in {"training_steps": steps, "trained": trained}.items():
        numbers = found[name] if name in found else found["held_out"][name]
        assert numbers["pearson"] == pytest.approx(stats.pearsonr(points["x"], points["y"])[0], abs=1e-6)
        assert numbers["spearman"] == pytest.approx(stats.spearmanr(points["x"], points["y"])[0], abs=1e-6)
        assert numbers["slope"] == pytest.approx(stats.linregress(points["x"], points["y"]).slope, abs=1e-6)
    same, left = found["same_task"], later[["x", "y"]] - groups.transform("mean")
    ranks = groups.rank() - groups.rank().groupby([later["step"], later["game_id"]]).transform("mean")
    assert same["pearson"] == pytest.approx(stats.pearsonr(left["x"], left["y"])[0], abs=1e-6)
    assert same["spearman"] == pytest.approx(stats.pearsonr(ranks["x"], ranks["y"])[0], abs=1e-6)
    fit = ols("y ~ x + C(group)", later.assign(group=groups.ngroup())).fit(
        cov_type="cluster", cov_kwds={"groups": groups.ngroup()}
    )
    assert same["slope"] == pytest.approx(fit.params["x"], abs=1e-6)
    assert [same["slope_low"], same["slope_high"]] == pytest.approx(list(fit.conf_int().loc["x"]), abs=0.002)
    rng, points = np.random.default_rng(7), trained[["x", "y"]].to_numpy()
    drawn = [stats.spearmanr(*points[rng.integers(300, size=300)].T)[0] for _ in range(400)]
    held = found["held_out"]["trained"]
    assert [held["spearman_low"], held["spearman_high"]] == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.03)
    assert (same["units"], held["units"], found["training_steps"]["units"]) == (120, 300, 20)
