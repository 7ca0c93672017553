"""What a run with a paid partner will take: told before it starts, and close to what is counted then."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from slim_rl.config import Config, checked, composed
from slim_rl.core.errors import UserError
from slim_rl.games.kuhn.tasks import KuhnTaskset
from stages import estimate, ready
from tests.checkpoints import qwen_checkpoint

ROOT = Path(__file__).parents[1]
PAID = "dialop-gpt4.1-8gpu"
SMALL = {
    "games.matching.size": 3,
    "games.matching.train_count": 4,
    "games.matching.eval_count": 24,
    "studies.asking.references": ["own-view", "asks-all-random"],
    "studies.asking.transplant_games": 8,
    "studies.asking.transfer_games": 4,
    "studies.asking.human_references": [],
}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """small(NAME=VALUE): the paid profile at a small size."""
    monkeypatch.chdir(ROOT)
    below = composed(PAID, SMALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/human").symlink_to(ROOT / "data/human")

    def parameters(**changes):
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(below))
        values = composed(settings={name.replace("__", "."): value for name, value in changes.items()})
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
        return checked(values, PAID)

    return parameters


def test_the_example_s_budget_covers_the_example(small):
    config = small()
    rows = [*estimate.estimate(config), *estimate.estimate(config, most=True)]
    assert [(row.stage, row.policy) for row in rows] == [
        ("train", "expected"), ("evaluate", "expected"), ("train", "at most"), ("evaluate", "at most"),
    ]  # fmt: skip
    expected, most = rows[0], rows[2]
    held_out = 24 * (1 + 100 // config.slime.evaluate_every)
    assert expected.dialogues == most.dialogues == 100 * 256 + held_out
    assert most.calls == 10 * most.dialogues, "each of the agent's ten turns is answered"
    assert 0.2 * most.dollars < expected.dollars < most.dollars < config.services["partner"].max_cost_dollars
    assert list(estimate.missing_budgets(rows, config)) == []


def test_a_budget_that_cannot_suffice_is_refused_before_the_run(small):
    with pytest.raises(UserError, match=r"stage train costs about .*max_cost_dollars is 20; raise it"):
        ready.check(small(services__partner__max_cost_dollars=20, model__base="tiny"))


@pytest.mark.slow
def test_with_the_lowest_tier_a_step_takes_most_of_an_hour_and_the_command_says_why(small, monkeypatch, capsys):
    small(services__partner__max_tokens_per_minute=30_000)
    monkeypatch.setattr(sys, "argv", ["estimate"])
    estimate.main()
    told = re.search(r"a step of 256 dialogues takes (\S+) minutes; (\w+) limits it", capsys.readouterr().out)
    assert float(told[1]) > 40 and told[2] == "max_tokens_per_minute"


@pytest.mark.slow
def test_what_is_counted_is_within_a_fifth_of_the_estimate(small, serve, monkeypatch, run_stage):
    """The stages `games` and `evaluate` of the paid profile, with our stand-ins for GPT-4.1 and for Qwen behind SGLang."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    partner = serve("--counts", "--weighs")
    config = small(
        games__matching__eval_count=16,
        studies__asking__transplant_games=0,
        services__partner__base_url=partner.base_url,
        evaluate__server=f"{sys.executable} {ROOT / 'tests/asker_server.py'} {{model}} {{port}}",
    )
    for model in ("base", "trained"):
        folder = Path("models", model, "Qwen3-4B")
        folder.mkdir(parents=True)
        for file in qwen_checkpoint(folder).iterdir():
            file.rename(folder.parent / file.name)
        folder.rmdir()
    run_stage("games")
    run_stage("evaluate")
    [row] = [row for row in estimate.estimate(config) if row.stage == "evaluate"]
    bill = json.loads(Path("data/episodes/bills.json").read_text())["partner"]
    counts = partner.counts()
    assert bill["calls"] == counts["calls"]
    assert row.calls == pytest.approx(bill["calls"], rel=0.2)
    assert row.tokens == pytest.approx(counts["tokens"], rel=0.2)


def test_a_policy_on_a_tinker_server_has_a_row_of_its_own(monkeypatch):
    monkeypatch.chdir(ROOT)
    few = {**SMALL, "games.matching.eval_count": 8}

    def rows(**settings):
        named = {name.replace("__", "."): value for name, value in settings.items()}
        config = checked(composed("qwen3-8b-tinker-gpt4.1", {**few, **named}), "")
        return config, [*estimate.estimate(config), *estimate.estimate(config, most=True)]

    config, found = rows()
    expected, most = (row for row in found if row.service == estimate.TINKER)
    assert (expected.stage, expected.policy, most.policy) == ("train", "expected", "at most")
    assert {(row.stage, row.service) for row in found} >= {("train", "partner"), ("evaluate", "partner")}
    assert expected.dialogues == 100 * 128 < expected.calls < most.calls and expected.dollars < most.dollars
    assert most.tokens > most.calls * config.model.turn_tokens
    _, with_reference = rows(train__kl_coefficient=0.01)
    assert next(row for row in with_reference if row.service == estimate.TINKER).dollars > expected.dollars
    few |= {"model.base": "tiny", "tinker.base_url": "http://own:8000", "services.partner.max_cost_dollars": None}
    with pytest.raises(UserError, match=r"tinker\.max_cost_dollars is 0\.01; raise it"):
        ready.check(checked(composed("qwen3-8b-tinker-gpt4.1", {**few, "tinker.max_cost_dollars": 0.01}), ""))


def kuhn_on_tinker(dollars):
    price = {"prompt": 1, "cached_prompt": 1, "completion": 1, "train": 1}
    tinker = {"base_url": "http://own:8000", "max_cost_dollars": dollars, "price": price}
    return Config.model_validate({"games": {"kuhn": {}}, "train": {"backend": "tinker"}, "tinker": tinker})


def test_the_ids_of_the_tasks_make_no_difference(monkeypatch):
    before = estimate.estimate(kuhn_on_tinker(100))
    tasks = KuhnTaskset.tasks
    monkeypatch.setattr(
        KuhnTaskset, "tasks", lambda *given: (replace(task, game_id=task.game_id[::-1]) for task in tasks(*given))
    )
    assert estimate.estimate(kuhn_on_tinker(100)) == before != []


def test_a_budget_is_no_reason_to_refuse_a_game_that_no_script_plays(monkeypatch, capsys):
    monkeypatch.setattr(KuhnTaskset, "demonstrate", lambda *_: None)
    estimate.check(kuhn_on_tinker(1e-6))
    assert "Nothing can be estimated for kuhn" in capsys.readouterr().out
