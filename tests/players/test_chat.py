"""A service that fails: what it costs, what is retried, and what stops the run."""

import asyncio
import os
import signal
import time

import pytest

from slim_rl.core.errors import PlayerFailed, UserError
from slim_rl.core.message import heard, said
from slim_rl.games import load_games
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.partner import one_turn
from slim_rl.players.chat_player import ChatPlayer
from slim_rl.players.config import ServiceConfig
from slim_rl.players.ledger import Ledger
from slim_rl.players.services import Services
from slim_rl.rollout.collect import collect
from slim_rl.rollout.seating import Request, Seating, service_makers
from slim_rl.rollout.shards import read_frame
from slim_rl.rollout.store import Store

ASK = [{"role": "user", "content": "Say [accept]."}]
PARTNER = "service:partner"


@pytest.fixture
def reply(run):
    return lambda services, seed=0: run(services["partner"].reply(ASK, seed))


@pytest.fixture
def evaluation(run):
    return lambda *arguments, **options: run(play_evaluation(*arguments, **options))


async def play_evaluation(
    services, count, folder, player="asks-4-random", partner=PARTNER, accept=False, at_once=100, **options
):
    game = load_games({"matching": Parameters(always_accept=accept)}, seed=0)["matching"]
    seating = Seating({"matching": game}, service_makers({player, partner}, services), seed=0)
    requests = [
        Request(f"e/{task.game_id}", "matching", task, (player, partner)) for task in game.taskset.tasks("train", count)
    ]
    return await collect(requests, seating.play, Store(folder), at_once, status=services.status, **options)


def calls_of(episodes):
    return sum(turn.seat == "player-2" for episode in episodes for turn in episode.turns)


# What fails


def test_the_partner_reads_its_board_and_the_dialogue_and_is_understood(serve, services, tmp_path, evaluation):
    one = services(partner=serve().config())
    chat = evaluation(one, 20, tmp_path / "chat", accept=True)
    scripted = evaluation(one, 20, tmp_path / "scripted", partner="scripted", accept=True)
    for ours, known in zip(chat, scripted, strict=True):
        assert ours.rewards == known.rewards
        assert ours.metrics["player-1.answers"] == known.metrics["player-1.answers"]


def test_no_call_is_made_for_a_proposal_that_is_accepted_anyway(serve, services, tmp_path, evaluation):
    server = serve()
    one = services(partner=server.config())
    episodes = evaluation(one, 5, tmp_path, player="own-view", accept=True)
    assert [episode.turns[-1].text for episode in episodes] == ["[accept]"] * 5
    assert server.counts()["calls"] == 0 and one.status() == "" and one.bills() == {}


def test_a_failure_that_lasts_fails_the_episode_with_its_cause_and_the_others_go_on(
    serve, services, tmp_path, evaluation
):
    server = serve("--faults", "0.2", "--kinds", "500")
    episodes = evaluation(services(partner=server.config(max_retries=0, timeout_seconds=30)), 40, tmp_path)
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
    ],
)
def test_every_kind_of_failure_is_retried_and_named(serve, services, fault, named, reply):
    """tests/players/test_answers.py has the answers that are no replies."""
    server = serve("--faults", "1", "--kinds", fault)
    config = server.config(max_retries=1, timeout_seconds=0.3 if fault == "hang" else 10)
    with pytest.raises(PlayerFailed, match=named):
        reply(services(partner=config))
    assert server.counts()["calls"] == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--key", "another"], "refuses the key in OPENAI_API_KEY; set the right one"),
        (["--model", "another"], r"has no model gpt-4.1 .* check services.partner.model"),
        (["--no-quota"], "has no quota left .* finished work is kept"),
        (["--faults", "1", "--kinds", "429 with retry-after", "--retry-after", "7200"], "pause of 7200 sec"),
    ],
)
def test_what_no_retry_can_cure_stops_the_run_at_its_first_call(
    serve, services, tmp_path, options, sentence, evaluation
):
    server = serve(*options)
    with pytest.raises(UserError, match=sentence):
        evaluation(services(partner=server.config(max_concurrent=1)), 50, tmp_path)
    assert server.counts()["calls"] == 1


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://127.0.0.1:9/v1", "The service judge at {} does not work: ClientConnectorError"),
        ("http://nowhere.invalid/v1", "The service judge at {} does not work: ClientConnectorDNSError"),
        ("http://a..b/v1", "The service judge at {} does not work: Unicode(Encode)?Error"),
        ("http://-é-.x/v1", "services.judge.base_url is {}, which is not an address"),
    ],
)
def test_a_service_that_is_not_there_is_reported_in_a_sentence(services, address, told, run):
    with pytest.raises(UserError, match=told.format(address)):
        run(services(judge=ServiceConfig(base_url=address, max_retries=1)).check(["judge"]))


@pytest.mark.parametrize("host", ["127.0.0.1:99999", "host:x", "[::1", ":80"])
def test_an_address_with_a_bad_host_or_port_is_refused_when_it_is_read(host):
    with pytest.raises(ValueError, match=r"base_url is .* which is not an address"):
        ServiceConfig(base_url=f"http://{host}/v1")


@pytest.mark.parametrize("fault", ["dropped", "429", "429 with retry-after", "nonsense"])
def test_a_service_that_is_down_for_good_stops_the_run_after_a_few_calls_and_the_rest_is_played_later(
    serve, services, tmp_path, fault, evaluation
):
    server = serve("--faults", "1", "--kinds", fault)
    one = services(partner=server.config(max_retries=0, max_concurrent=16), folder=tmp_path)
    told = r"The service partner at .* is down: \d+ calls in a row failed, the last with \w"
    with pytest.raises(UserError, match=told):
        evaluation(one, 60, tmp_path / "e")
    assert server.counts()["calls"] <= 16 + 10 + 3
    server.start_over()
    again = services(partner=server.config(), folder=tmp_path)
    assert {episode.status for episode in evaluation(again, 60, tmp_path / "e")} == {"completed"}


# Limits


def test_a_pause_that_the_service_asks_for_is_kept(serve, services, reply):
    server = serve("--faults", "0.4", "--kinds", "429 with retry-after", "--retry-after", "0.3")
    one = services(partner=server.config(max_concurrent=1))
    for seed in range(8):
        reply(one, seed=seed)
    counts = server.counts()
    assert counts["faults"] and counts["broken_pauses"] == 0


@pytest.mark.slow
def test_the_budget_is_never_exceeded_and_a_higher_one_goes_on(serve, services, tmp_path, evaluation, run):
    server = serve("--faults", "0.2")
    config, ledgers = server.config(max_cost_dollars=0.1), {"folder": tmp_path}
    for _ in range(2):  # what was spent before counts
        one = services(partner=config, **ledgers)
        with pytest.raises(UserError, match=r"services.partner.max_cost_dollars \(0.1\) is reached"):
            evaluation(one, 40, tmp_path / "e", at_once=5)
        run(one.close())
        assert 0.05 < one.bills()["partner"]["dollars"] <= 0.1
        assert 0 < len(read_frame(tmp_path / "e")) < 40
    richer = services(partner=config.model_copy(update={"max_cost_dollars": 5.0}), **ledgers)
    episodes = evaluation(richer, 40, tmp_path / "e", tries=2)
    assert {episode.status for episode in episodes} == {"completed"}
    assert set(server.counts()["accepted"]) == {1}


# Turns


@pytest.mark.parametrize(
    ("says", "turn", "counts", "calls"),
    [
        ("[accept]", "[accept]", {"asked_again": 1, "unusable_turns": 1}, 2),  # left to the game
        ("Hello.", "[message] Hello.", {"repaired_turns": 1}, 1),
    ],
)
def test_an_unusable_reply_is_repaired_or_requested_once_more(serve, services, run, says, turn, counts, calls):
    server = serve("--says", says)
    one = services(partner=server.config())
    player = ChatPlayer(one["partner"], "You are shy.", one_turn, seed=0)
    assert run(player.respond(heard("Partner: [message] Hi"))) == said(turn)
    assert counts.items() <= one.bills()["partner"].items()
    assert server.counts()["calls"] == calls


def test_a_reply_that_is_no_text_is_made_one(serve, services, reply):
    assert reply(services(partner=serve("--says", "Hello \ud83d").config())).text == "Hello ?"


# The key


def test_a_key_is_needed_and_must_be_one(monkeypatch, serve, services, reply):
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UserError, match="set the environment variable OPENAI_API_KEY"):
        services(partner=ServiceConfig())["partner"]
    reply(services(partner=serve().config()))  # a server of your own may not ask for one
    monkeypatch.setenv("OPENAI_API_KEY", "sk-abc\ndef")
    with pytest.raises(UserError, match="holds a character that no key has") as told:
        services(partner=ServiceConfig())["partner"]
    assert "sk-abc" not in str(told.value)


def test_each_service_gets_its_own_key_and_no_other(monkeypatch, serve, services, key, run):
    monkeypatch.setenv("OTHER_KEY", "sk-other")
    server = serve()
    own = services(partner=server.config(key_variable="OTHER_KEY"), judge=server.config(key_variable=None))
    run(own.check(["partner", "judge"]))
    assert sorted(server.counts()["keys"]) == ["Bearer none", "Bearer sk-other"]
    server.start_over("--key", key)
    with pytest.raises(UserError, match="refuses the key in OTHER_KEY; set the right one"):
        run(own.check(["partner"]))
    with pytest.raises(UserError, match=r"needs a key; set the variable that services.judge.key_variable names"):
        run(own.check(["judge"]))
    monkeypatch.delenv("OTHER_KEY")
    with pytest.raises(UserError, match=r"services.partner needs a key: set the environment variable OTHER_KEY"):
        services(partner=server.config(key_variable="OTHER_KEY"))["partner"]


def test_messages_of_a_service_without_a_key_are_shown_as_they_are(serve, services, run):
    one = services(partner=serve("--model", "another").config(key_variable=None, model="none-such"))
    told = r"has no model none-such \(Error code: 404 - The model none-such does not exist\)"
    with pytest.raises(UserError, match=told):
        run(one.check(["partner"]))


def test_a_service_that_repeats_the_key_does_not_bring_it_into_any_file_or_message(
    serve, services, tmp_path, key, evaluation, run
):
    server = serve("--faults", "1", "--kinds", "500")
    one = services(partner=server.config(max_retries=0), folder=tmp_path)
    episodes = evaluation(one, 3, tmp_path / "e")
    assert {episode.status for episode in episodes} == {"failed"}
    assert not any(key.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    server.start_over("--key", "another")  # its refusal repeats the key
    with pytest.raises(UserError) as refused:
        run(one.check(["partner"]))
    assert key not in str(refused.value)


# Interruptions


def start_evaluation(config, *arguments, **options):
    """In a process of its own, to be killed."""

    async def evaluate(count, folder):
        async with Services({"partner": config}, "test/0", folder) as services:
            await play_evaluation(services, count, folder / "e", **options)

    child = os.fork()
    if not child:
        try:
            asyncio.run(evaluate(*arguments))
        finally:
            os._exit(0)
    return child


def kill(child, server):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while (counts := server.counts())["under_way"]:  # until it has seen that the connections are closed
        time.sleep(0.01)
    return counts


def test_no_reply_that_arrived_is_paid_for_again_after_a_kill(serve, services, tmp_path, evaluation):
    """kill -9 while no reply is on the wire, with dialogues of every length under way."""
    server = serve("--hold-after", "150", "--latency", "0.005")
    config = server.config(max_concurrent=4, timeout_seconds=60)
    child = start_evaluation(config, 60, tmp_path, at_once=20)
    while ((counts := server.counts())["good"], counts["under_way"]) != (150, 4):
        time.sleep(0.01)
    before = kill(child, server)
    assert before["good"] == 150 and 0 < sum(before["accepted"]) < 60
    server.start_over()
    episodes = evaluation(services(partner=config, folder=tmp_path), 60, tmp_path / "e")
    assert {episode.status for episode in episodes} == {"completed"}
    after = server.counts()
    assert before["good"] + after["good"] == calls_of(episodes)
    assert len(before["accepted"]) + len(after["accepted"]) == 60  # none was held twice to its end


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("reason", ["an error in another dialogue", "the budget of another service"])
def test_a_stop_waits_for_the_calls_under_way_and_none_is_paid_for_again(serve, services, tmp_path, run, reply, reason):
    server = serve("--latency", "0.5")
    config = server.config(max_concurrent=4, timeout_seconds=10)
    first = services(partner=config, judge=server.config(max_cost_dollars=1e-6), folder=tmp_path)

    async def dialogues():
        async with asyncio.TaskGroup() as group:
            for seed in range(8):
                group.create_task(first["partner"].reply(ASK, seed))
            await until(lambda: server.counts()["under_way"] == 4)
            if reason.startswith("the budget"):
                await first["judge"].reply(ASK, 0)
            raise UserError("The game is broken.")

    with pytest.raises(ExceptionGroup):
        run(dialogues())
    assert server.counts()["good"] == 0  # the dialogues do not wait
    run(first.close())
    assert server.counts()["good"] == 4  # those that waited in line are not made
    assert first.bills()["partner"]["calls"] == 4
    server.start_over()
    second = services(partner=config, folder=tmp_path)
    for seed in range(8):
        reply(second, seed=seed)
    assert server.counts()["good"] == 4


def test_a_stop_waits_no_longer_than_a_call_may_take(serve, services, tmp_path, run):
    """The server would hang for half a minute."""
    server = serve("--faults", "1", "--kinds", "hang")
    one = services(partner=server.config(timeout_seconds=0.5), folder=tmp_path)

    async def interrupted():
        call = asyncio.create_task(one["partner"].reply(ASK, 0))
        await until(lambda: server.counts()["calls"])
        call.cancel()
        await one.close()

    run(interrupted())
    bill = one.bills()["partner"]
    assert bill["TimeoutError"] == bill["estimated_calls"] == server.counts()["calls"] == 1  # no retry


def test_ctrl_c_ends_the_dialogues_and_writes_those_that_had_ended(serve, tmp_path):
    server = serve("--latency", "0.01")
    child = start_evaluation(server.config(max_concurrent=4), 1000, tmp_path, at_once=20)
    while sum(server.counts()["accepted"]) < 20:
        time.sleep(0.01)
    os.kill(child, signal.SIGINT)
    os.waitpid(child, 0)
    assert 16 <= len(read_frame(tmp_path / "e")) < 1000  # in a shard; at most 4 were not yet known to have ended
    assert not list(tmp_path.rglob(".journal.jsonl"))


def test_each_kill_costs_at_most_the_replies_on_the_wire(serve, services, tmp_path, evaluation):
    server = serve("--latency", "0.01")
    config, on_the_wire = server.config(max_concurrent=4), 0
    for kills in (1, 2):
        child = start_evaluation(config, 40, tmp_path, at_once=20)
        while server.counts()["good"] < 60 * kills:
            time.sleep(0.01)
        good = kill(child, server)["good"]
        lost = good - len(Ledger(tmp_path / "partner.jsonl", None, "").replies) - on_the_wire
        assert 0 <= lost <= 4
        on_the_wire += lost
    episodes = evaluation(services(partner=config, folder=tmp_path), 40, tmp_path / "e")
    assert {episode.status for episode in episodes} == {"completed"}
    counts = server.counts()
    assert counts["good"] == calls_of(episodes) + on_the_wire
    assert sum(count - 1 for count in counts["accepted"]) <= on_the_wire
