"""A partner behind a service that fails: what it costs, what is tried again, and what stops the run."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from slim_rl.config import Config, MatchingConfig, PartnerConfig
from slim_rl.errors import UserError
from slim_rl.games.matching import generate_games, kind
from slim_rl.games.matching.shy import one_turn
from slim_rl.players.chat import ChatPlayer, chat_service
from slim_rl.players.ledger import Ledger, Price, price_of
from slim_rl.players.player import PlayerFailed
from slim_rl.rollout.collect import collect
from slim_rl.rollout.store import read_frame
from slim_rl.rollout.table import Job
from slim_rl.seating import make_table

ASK = [{"role": "user", "content": "Say [accept]."}]


@pytest.fixture
def service():
    services = []

    def make(config, ledger=None, cache=None):
        services.append(chat_service(config, ledger, cache))
        return services[-1]

    yield make
    for one in services:
        one.close()


def reply(service, messages=ASK, seed=0):
    return asyncio.run(service.reply(messages, seed))


def evaluation(config, service, count, folder, player="asks-4-random", at_once=100, **options):
    whole = Config(partner=config)
    seating = (player, config.kind)
    table = make_table(whole, kind(whole), seating, {}, service)
    jobs = [Job(f"e/{game['game_id']}", game, seating) for game in generate_games(count, 0, MatchingConfig())]
    return collect(jobs, table.play, folder, at_once, status=table.status, run=table.run, **options)


def test_episodes_against_a_service_that_fails_three_calls_in_ten(serve, service, tmp_path):
    server = serve("--faults", "0.3")
    config = server.config(always_accept=False)
    episodes = evaluation(config, service(config), 60, tmp_path, tries=2)
    assert Counter(episode.status for episode in episodes) == {"completed": 60}
    counts = server.counts()
    assert len(counts["faults"]) == 9 and sum(counts["faults"].values()) > 60
    assert counts["accepted"] == [1] * 60  # no dialogue was played twice to its end
    assert counts["calls"] <= 1.6 * counts["needed"]


def test_the_partner_reads_its_board_and_the_dialogue_and_is_understood(serve, service, tmp_path):
    config = serve().config()
    chat = evaluation(config, service(config), 20, tmp_path / "chat")
    scripted = evaluation(config.model_copy(update={"kind": "scripted"}), None, 20, tmp_path / "scripted")
    for told, known in zip(chat, scripted, strict=True):
        assert told.rewards == known.rewards
        assert told.facts["player-1.answers"] == known.facts["player-1.answers"]


def test_no_call_is_made_for_a_proposal_that_is_accepted_anyway(serve, service, tmp_path):
    server = serve()
    episodes = evaluation(server.config(), service(server.config()), 5, tmp_path, player="own-view")
    assert [episode.turns[-1].text for episode in episodes] == ["[accept]"] * 5
    assert server.counts()["calls"] == 0


def test_a_failure_that_lasts_fails_the_episode_with_its_cause_and_the_others_go_on(serve, service, tmp_path):
    server = serve("--faults", "0.5", "--kinds", "500")
    config = server.config(max_retries=0)
    episodes = evaluation(config, service(config), 40, tmp_path)
    assert {episode.status for episode in episodes} == {"completed", "failed"}
    failed = next(episode for episode in episodes if episode.status == "failed")
    assert failed.error.startswith("InternalServerError: ") and "call 1 of at most 1" in failed.error
    assert (failed.rewards, failed.traces) == ({}, {})


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("429", "RateLimitError"),
        ("500", "InternalServerError"),
        ("dropped", "ServerDisconnectedError"),
        ("hang", "TimeoutError"),
        ("garbage", "Error"),
        ("truncated", "JSONDecodeError"),
        ("nonsense", "ValidationError"),
        ("no choices", "EmptyReply"),
        ("refusal", "NoReply: I cannot help with that."),
    ],
)
def test_every_kind_of_failure_is_tried_again_and_named(serve, service, fault, named):
    server = serve("--faults", "1", "--kinds", fault)
    with pytest.raises(PlayerFailed, match=named):
        reply(service(server.config(max_retries=1, timeout_seconds=0.3 if fault == "hang" else 10)))
    assert server.counts()["calls"] == 2


@pytest.mark.parametrize(
    ("options", "changes", "sentence"),
    [
        (["--key", "another"], {}, "refuses the key in OPENAI_API_KEY; set the right one"),
        (["--model", "another"], {}, "has no model gpt-4.1 .* check partner.model"),
        (["--no-quota"], {}, "has no quota left .* what was finished is kept"),
        (
            ["--faults", "1", "--kinds", "429 with retry-after", "--retry-after", "7200"],
            {},
            "pause of 7200 sec",
        ),
    ],
)
def test_what_no_retry_can_cure_stops_the_run_at_its_first_call(
    serve, service, tmp_path, options, changes, sentence
):
    server = serve(*options)
    config = server.config(max_concurrent=1, **changes)
    with pytest.raises(UserError, match=sentence):
        evaluation(config, service(config), 50, tmp_path)
    assert server.counts()["calls"] == 1


def test_a_service_that_is_not_there_is_told_in_a_sentence(service):
    config = PartnerConfig(kind="chat", base_url="http://127.0.0.1:9/v1", max_retries=1)
    with pytest.raises(UserError, match=r"http://127.0.0.1:9/v1 does not work: ClientConnectorError"):
        service(config).check()


def test_a_pause_that_the_service_asks_for_is_kept(serve, service):
    server = serve("--faults", "0.4", "--kinds", "429 with retry-after", "--retry-after", "0.3")
    one = service(server.config(max_concurrent=1))
    for seed in range(8):
        reply(one, seed=seed)
    counts = server.counts()
    assert counts["faults"] and counts["broken_pauses"] == 0


def test_never_more_requests_in_any_minute_than_allowed(serve, service):
    server = serve("--latency", "0.05")
    one = service(server.config(max_requests_per_minute=40))

    async def hurry():
        async with asyncio.timeout(3):
            await asyncio.gather(*(one.reply(ASK, seed) for seed in range(60)))

    with pytest.raises(TimeoutError):
        asyncio.run(hurry())
    assert server.counts()["most_in_a_minute"] == 40


def test_the_budget_is_never_exceeded_and_a_higher_one_goes_on(serve, service, tmp_path):
    server = serve("--faults", "0.2")
    ledger = tmp_path / "partner.jsonl"
    config = server.config(max_cost_dollars=0.1, always_accept=False)
    with pytest.raises(UserError, match=r"max_cost_dollars \(0.1\) is reached: \$0.\d+ in \d+ calls"):
        evaluation(config, service(config, ledger), 40, tmp_path / "e", at_once=20)
    spent = Ledger(ledger, None).totals
    assert 0.05 < spent["dollars"] <= 0.1
    there = len(read_frame(tmp_path / "e"))
    assert 0 < there < 40

    with pytest.raises(UserError, match="is reached"):  # what was spent before counts
        evaluation(config, service(config, ledger), 40, tmp_path / "e")
    richer = config.model_copy(update={"max_cost_dollars": 5.0})
    episodes = evaluation(richer, service(richer, ledger), 40, tmp_path / "e", tries=2)
    assert {episode.status for episode in episodes} == {"completed"}
    assert set(server.counts()["accepted"]) == {1}


def test_dollars_by_the_price_table(serve, service, tmp_path):
    one = service(serve().config(model="gpt-4.1-mini-2025-04-14"))
    reply(one)
    assert one.bill() == {
        "model": "gpt-4.1-mini-2025-04-14",
        "calls": 1,
        "prompt_tokens": 300,
        "cached_tokens": 0,
        "completion_tokens": 12,
        "dollars": pytest.approx((300 * 0.4 + 12 * 1.6) / 1e6, abs=1e-6),
    }
    assert one.status() == "1 calls, 0k tokens, $0.00"
    assert price_of("gpt-4.1") == Price(2.0, 0.5, 8.0)
    assert price_of("gpt-4.1-turbo") is None


def test_a_budget_needs_a_price(serve, service):
    with pytest.raises(UserError, match=r"conf/prices.yaml has no price for smol"):
        service(serve().config(model="smol", max_cost_dollars=1))


def test_a_ledger_survives_a_line_that_was_cut_off(tmp_path):
    path = tmp_path / "partner.jsonl"
    Ledger(path, None).add(("a", ["Hello.", False]), calls=1)
    with path.open("a") as file:
        file.write('{"reply": ["b", ["Hello.", false]], "calls": 1, "dol')
    Ledger(path, None).add(calls=1)
    whole = Ledger(path, None)
    assert whole.totals["calls"] == 2 and whole.replies == {"a": ["Hello.", False]}


def test_an_episode_that_failed_is_played_again_with_the_replies_it_had(serve, service, tmp_path):
    server = serve("--faults", "0.2", "--kinds", "500")
    config = server.config(always_accept=False, max_retries=0)
    episodes = evaluation(config, service(config), 40, tmp_path, tries=30)
    assert {episode.status for episode in episodes} == {"completed"}
    assert server.counts()["good"] == calls_of(episodes)


def test_a_dialogue_that_was_held_before_is_replayed_without_a_call(serve, service, tmp_path):
    server = serve()
    config = server.config(cache=True)
    first = evaluation(config, service(config, cache=tmp_path / "cache"), 10, tmp_path / "first")
    made = server.counts()["calls"]
    again = service(config, cache=tmp_path / "cache")
    assert evaluation(config, again, 10, tmp_path / "second") == first
    assert server.counts()["calls"] == made
    assert again.bill()["replayed"] == made
    off = config.model_copy(update={"cache": False})
    evaluation(off, service(off, cache=tmp_path / "cache"), 10, tmp_path / "third")
    assert server.counts()["calls"] == 2 * made


PROPOSAL = (
    "Partner: [propose] Proposal:\nBLEU: Ava Li\nYou can output one of these choices: [accept] or [reject]"
)


@pytest.mark.parametrize(
    ("heard", "said", "turn"),
    [
        ("Partner: [message] Hi", "[message] Hello.", "[message] Hello."),
        ("Partner: [message] Hi", "Hello.", "[message] Hello."),
        ("Partner: [message] Hi", "Sure! [message] Hello.", "[message] Hello."),
        ("Partner: [message] Hi", "You: [message] Hello.\nPartner: [message] And?", "[message] Hello."),
        ("Partner: [message] Hi", "[Message] Hello. [propose] BLEU: Ava Li", "[message] Hello."),
        (PROPOSAL, "[accept]", "[accept]"),
        (PROPOSAL, "I accept your proposal.", "[accept]"),
        (PROPOSAL, "[message] Good. [reject]", "[reject]"),
        ("Error: A proposal was made. Answer it with [accept] or [reject].", "[Accept].", "[accept]"),
    ],
)
def test_one_turn_is_found_in_a_reply(heard, said, turn):
    assert one_turn(heard, said) == turn


@pytest.mark.parametrize(
    ("heard", "said", "reason"),
    [
        ("Partner: [message] Hi", "  ", "Your turn is empty"),
        ("Partner: [message] Hi", "[accept]", "no proposal to answer"),
        ("Partner: [message] Hi", "[propose] BLEU: Ava Li", "you make none"),
        (PROPOSAL, "[accept] or [reject]?", r"with \[accept\] or \[reject\] alone"),
        (PROPOSAL, "I do not accept.", r"with \[accept\] or \[reject\] alone"),
    ],
)
def test_what_cannot_be_mended_is_told(heard, said, reason):
    with pytest.raises(ValueError, match=reason):
        one_turn(heard, said)


def test_an_unusable_reply_is_asked_for_once_more_then_left_to_the_game(serve, service):
    server = serve("--says", "[accept]")
    one = service(server.config())
    player = ChatPlayer(one, "You are shy.", one_turn, seed=0)
    assert asyncio.run(player.respond("Partner: [message] Hi")) == "[accept]"
    assert one.bill()["asked_again"] == one.bill()["unusable_turns"] == 1
    assert server.counts()["calls"] == 2
    mending = ChatPlayer(service(serve("--says", "Hello.").config()), "You are shy.", one_turn, seed=0)
    assert asyncio.run(mending.respond("Partner: [message] Hi")) == "[message] Hello."


def test_a_key_is_needed_and_must_be_one(monkeypatch, serve, service):
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UserError, match="set the environment variable OPENAI_API_KEY"):
        service(PartnerConfig(kind="chat"))
    reply(service(serve().config()))  # a server of one's own may not ask for one
    monkeypatch.setenv("OPENAI_API_KEY", "sk-abc\ndef")
    with pytest.raises(UserError, match="holds a character that no key has") as told:
        service(PartnerConfig(kind="chat"))
    assert "sk-abc" not in str(told.value)


def test_a_service_that_repeats_the_key_does_not_bring_it_into_the_episode(serve, service, tmp_path, key):
    server = serve("--faults", "1", "--kinds", "500", "--seed", "1")
    config = server.config(max_retries=0)
    one = service(config)
    assert key not in one._one_line(f"bad key {key}!") and "***" in one._one_line(f"bad key {key}!")
    evaluation(config, one, 3, tmp_path)
    assert not any(key.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_wrong_key_ends_a_stage_in_a_sentence_before_torch_is_loaded(serve, tmp_path, key):
    server = serve("--key", "another")
    values = server.config().model_dump()
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"partner": values}))
    (tmp_path / "stages").symlink_to(Path(__file__).parents[2] / "stages")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "stages.partner"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    imported, _, told = done.stderr.rpartition("error: ")
    assert "openai" in imported and "torch" not in imported
    assert (done.returncode, done.stdout) == (1, "")
    assert told == (
        f"The partner's service at {server.base_url} refuses the key in OPENAI_API_KEY; set the right one.\n"
    )
    assert server.counts()["keys"] == [f"Bearer {key}"]


def start_evaluation(*arguments, **options):
    """In a process of its own, to be killed."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs ignore it
        try:
            config, ledger, *others = arguments
            evaluation(config, chat_service(config, ledger, None), *others, **options)
        finally:
            os._exit(0)
    return child


def kill(child, server):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while (counts := server.counts())["under_way"]:  # it hears of the closed connections in a moment
        time.sleep(0.01)
    return counts


def calls_of(episodes):
    return sum(turn.seat == "player-2" for episode in episodes for turn in episode.turns)


def test_no_reply_that_arrived_is_paid_for_again_after_a_kill(serve, service, tmp_path):
    """kill -9 while no reply is on the wire, with dialogues of every length under way."""
    server = serve("--hold-after", "150", "--latency", "0.005")
    config = server.config(always_accept=False, max_concurrent=4, timeout_seconds=60)
    ledger = tmp_path / "partner.jsonl"
    child = start_evaluation(config, ledger, 60, tmp_path / "e", at_once=20)
    while ((counts := server.counts())["good"], counts["under_way"]) != (150, 4):
        time.sleep(0.01)
    before = kill(child, server)
    assert before["good"] == 150 and 0 < sum(before["accepted"]) < 60
    server.process.kill()
    server.process.wait()
    again = serve("--port", server.url.rpartition(":")[2])
    episodes = evaluation(config, service(config, ledger), 60, tmp_path / "e")
    assert {episode.status for episode in episodes} == {"completed"}
    after = again.counts()
    assert before["good"] + after["good"] == calls_of(episodes)
    assert len(before["accepted"]) + len(after["accepted"]) == 60  # none was held twice to its end


def test_ctrl_c_ends_the_dialogues_and_writes_those_that_had_ended(serve, service, tmp_path):
    server = serve("--latency", "0.01")
    config = server.config(always_accept=False, max_concurrent=4)
    child = start_evaluation(config, tmp_path / "partner.jsonl", 1000, tmp_path / "e", at_once=20)
    while sum(server.counts()["accepted"]) < 20:
        time.sleep(0.01)
    started = time.monotonic()
    os.kill(child, signal.SIGINT)
    os.waitpid(child, 0)
    assert time.monotonic() - started < 5  # by itself, not when all had been played
    assert 16 <= len(read_frame(tmp_path / "e")) < 1000  # in a shard; at most 4 had not heard of their end
    assert not list(tmp_path.rglob(".journal.jsonl"))


def test_of_many_kills_each_costs_at_most_the_replies_on_the_wire(serve, service, tmp_path):
    server = serve("--latency", "0.01")
    config = server.config(always_accept=False, max_concurrent=4)
    ledger, on_the_wire = tmp_path / "partner.jsonl", 0
    for kills in range(1, 5):
        child = start_evaluation(config, ledger, 150, tmp_path / "e", at_once=20)
        while server.counts()["good"] < 120 * kills:
            time.sleep(0.01)
        good = kill(child, server)["good"]
        lost = good - len(Ledger(ledger, None).replies) - on_the_wire
        assert 0 <= lost <= 4
        on_the_wire += lost
    episodes = evaluation(config, service(config, ledger), 150, tmp_path / "e")
    assert {episode.status for episode in episodes} == {"completed"}
    counts = server.counts()
    assert counts["good"] == calls_of(episodes) + on_the_wire
    assert sum(count - 1 for count in counts["accepted"]) <= on_the_wire
