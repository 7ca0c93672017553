"""Services by name: what is paid for once, whose bill it is on, and the check before a stage."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.players import ledger
from slim_rl.players.config import Price
from slim_rl.players.ledger import Ledger, price_of
from stages.services import services_of

ASK = [{"role": "user", "content": "Say [accept]."}]


@pytest.fixture
def ask(run):
    def each(services, *seeds, name="partner"):
        return [run(services[name].reply(ASK, seed)).text for seed in seeds]

    return each


def test_a_reply_is_paid_for_once_by_whichever_run(serve, services, tmp_path, ask):
    server = serve()
    first = services(partner=server.config(), run="train/1", folder=tmp_path)
    told = ask(first, 0, 1)
    second = services(partner=server.config(max_concurrent=3), run="evaluate/2", folder=tmp_path)
    assert ask(second, 0, 1) == told and server.counts()["calls"] == 2
    ask(second, 2)
    assert server.counts()["calls"] == 3
    bills = [one.bills()["partner"] for one in (first, second)]
    assert [(bill["calls"], bill.get("replayed", 0)) for bill in bills] == [(2, 0), (1, 2)]
    again = services(partner=server.config(), run="train/1", folder=tmp_path)  # all was done before
    assert again.bills()["partner"] == bills[0]


@pytest.mark.parametrize("change", [{"model": "gpt-4o"}, {"temperature": 1.0}, {"max_reply_tokens": 7}])
def test_a_service_that_would_answer_otherwise_is_asked(serve, services, tmp_path, change, ask):
    server = serve()
    ask(services(partner=server.config(), folder=tmp_path), 0)
    ask(services(partner=server.config(**change), folder=tmp_path), 0)
    assert server.counts()["calls"] == 2


def test_each_run_has_a_budget_of_its_own(serve, services, tmp_path, ask):
    server = serve()
    config = server.config(max_cost_dollars=0.0016)  # a call is estimated at 0.001 and costs 0.0007
    for run, seeds in ("train/1", range(5)), ("evaluate/2", range(5, 10)):
        before = server.counts()["calls"]
        one = services(partner=config, run=run, folder=tmp_path)
        with pytest.raises(UserError, match=r"services.partner.max_cost_dollars \(0.0016\) is reached"):
            ask(one, *seeds)
        assert server.counts()["calls"] - before == one.bills()["partner"]["calls"] == 1


def test_an_edit_of_the_code_resets_no_budget(serve, tmp_path, monkeypatch, ask, run):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    server = serve()
    Path("mine.py").write_text("from slim_rl.games.kuhn import Parameters, taskset\n")
    games = {"mine": {"seating": ["policy", "policy"]}}
    for edit, steps, calls in ("a = 1", 7, 1), ("a = 2", 7, 0), ("a = 2", 8, 1):
        Path("mine.py").write_text(f"from slim_rl.games.kuhn import Parameters, taskset\n{edit}\n")
        service = server.config(max_cost_dollars=0.0016)  # enough for one call
        config = Config(games=games, services={"partner": service}, train={"steps": steps})
        before = server.counts()["calls"]
        one = services_of(config, "evaluate")
        with pytest.raises(UserError, match="is reached"):
            ask(one, *range(10 * steps, 10 * steps + 5))
        run(one.close())
        assert server.counts()["calls"] - before == calls


def test_each_service_has_its_limits_its_ledger_and_its_bill(serve, services, tmp_path, ask):
    server = serve("--model", "gpt-4.1")
    both = services(partner=server.config(), judge=server.config(model="gpt-4o"), folder=tmp_path)
    assert both.status() == "" and both.bills() == {}
    ask(both, 0)
    assert both.status() == "1 calls, 0k tokens, $0.00"
    with pytest.raises(UserError, match=r"The service judge at .* has no model gpt-4o .*services.judge.model"):
        ask(both, 0, name="judge")
    assert both.status() == "partner: 1 calls, 0k tokens, $0.00; judge: 1 calls, 0k tokens, $0.00"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["judge.jsonl", "partner.jsonl"]


OWN = {"prompt": 100, "cached_prompt": 0, "completion": 1000}


@pytest.mark.parametrize(
    ("model", "changes", "dollars"),
    [
        ("gpt-4.1-mini-2025-04-14", {}, (300 * 0.4 + 12 * 1.6) / 1e6),  # by the price list
        ("gpt-4.1", {"price": OWN}, 300 * 1e-4 + 12 * 1e-3),
        ("smol", {"price": OWN, "max_cost_dollars": 1}, 300 * 1e-4 + 12 * 1e-3),
        ("smol", {}, None),
    ],
)
def test_a_bill_has_the_price_of_the_list_or_your_own(serve, services, ask, model, changes, dollars):
    one = services(partner=serve().config(model=model, **changes))
    ask(one, 0)
    bill = {"model": model, "calls": 1, "prompt_tokens": 300, "cached_tokens": 0, "completion_tokens": 12}
    bill |= {} if dollars is None else {"dollars": pytest.approx(dollars, abs=1e-6)}
    assert one.bills() == {"partner": bill}


def test_the_price_list_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert price_of("gpt-4.1") == Price(prompt=2.0, cached_prompt=0.5, completion=8.0)
    assert price_of("gpt-4.1-turbo") is None


def test_a_damaged_price_list_is_reported_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "PRICES", tmp_path / "prices.yaml")
    (tmp_path / "prices.yaml").write_text("gpt-4.1: 7")
    with pytest.raises(UserError, match="is not a price list"):
        price_of("gpt-4.1")


def test_a_budget_needs_a_price(serve, services):
    one = services(partner=serve().config(model="smol", max_cost_dollars=1))
    with pytest.raises(UserError, match=r"prices.yaml has no price for smol; set services.partner.price"):
        one["partner"]


def bought(ledger: Ledger, *keys: str) -> None:
    for key in keys:
        ledger.begin(300, 120).answered(300, 0, 12, (key, ["Hello.", False]))


@pytest.mark.parametrize(
    "damage", [b'{"run": "r", "calls": 1, "dol', b"\xff\x00", b"[1]", b'{"run": "r", "reply": 7}', b'{"calls": "x"}']
)
def test_damage_of_a_ledger_names_the_lines_and_their_cost_and_deleting_them_goes_on(tmp_path, damage):
    path, price = tmp_path / "partner.jsonl", Price(prompt=10, cached_prompt=0, completion=100)
    bought(Ledger(path, price, "r"), *"abcd")
    lines = path.read_bytes().split(b"\n")
    lines[7] = lines[15] = damage  # the replies b and d
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(UserError, match=r"partner.jsonl is damaged in line 8, 16. Up to 2 .* about \$0") as told:
        Ledger(path, price, "r")
    subprocess.run(re.search(r"sed .*", str(told.value))[0], shell=True, check=True)
    assert set(Ledger(path, price, "r").replies) == {"a", "c"}


@pytest.mark.parametrize("ends", ["answered", "not"])
def test_a_call_that_a_kill_cut_off_is_in_the_bill_with_the_most_that_it_can_cost(tmp_path, ends):
    path, price = tmp_path / "partner.jsonl", Price(prompt=10, cached_prompt=0, completion=100)
    first = Ledger(path, price, "r")
    bought(first, "a")
    call = first.begin(300, 120)
    if ends == "answered":
        call.answered(200, 0, 10)
    bill = Ledger(path, price, "r").bill()  # of the process that goes on
    dollars = (300 * 10 + 12 * 100 + ((200 * 10 + 10 * 100) if ends == "answered" else (300 * 10 + 120 * 100))) / 1e6
    assert bill["calls"] == 2 and bill["dollars"] == pytest.approx(dollars, abs=1e-6)
    assert bill.get("unanswered", 0) == (ends == "not")


def test_a_check_always_calls(serve, services, tmp_path, run):
    server = serve()
    for _ in range(2):
        run(services(partner=server.config(), folder=tmp_path).check(["partner"]))
    assert server.counts()["calls"] == 2


def test_a_wrong_key_ends_a_stage_in_a_sentence_before_torch_is_loaded(serve, tmp_path, key):
    server = serve("--key", "another")
    values = {
        "services": {"judge": server.config().model_dump()},
        "games": {"matching": {"seating": ["policy", "service:judge"]}},
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "stages").symlink_to(Path(__file__).parents[2] / "stages")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "stages.services"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    imported, _, told = done.stderr.rpartition("error: ")
    assert "openai" in imported and "torch" not in imported
    assert (done.returncode, done.stdout) == (1, "")
    assert told == f"The service judge at {server.base_url} refuses the key in OPENAI_API_KEY; set the right one.\n"
    assert server.counts()["keys"] == [f"Bearer {key}"]
