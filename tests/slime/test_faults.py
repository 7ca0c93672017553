"""A rollout of SLIME's own ends whatever goes wrong on the way, and no group is left half."""

import asyncio
import itertools
import logging
import threading
import time

import aiohttp
import requests
from aiohttp import web
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils.http_utils import init_http_client
from slime.utils.types import Sample

from slim_rl.core.errors import PlayerFailed
from tests.slime.support import Serving, router, server, slime_args

SMALL = {"games_per_step": 16, "samples_per_game": 4}
LOGGER = "slim_rl.slime.generate"


class Proxy(Serving):
    """Stands before the router and does to `/generate` what `fault(call number)` says: a status, "hang" or None."""

    def __init__(self, router_port, fault):
        self.calls, self.fault = 0, fault
        self._target = f"http://127.0.0.1:{router_port}"
        super().__init__(self._pass)

    async def _pass(self, request):
        if request.path == "/generate":
            self.calls += 1
            what = self.fault(self.calls)
            if what == "hang":
                await asyncio.sleep(3600)
            if what:
                return web.Response(status=what, text="on purpose")
        url, data = self._target + request.path_qs, await request.read()
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, url, data=data, headers=request.headers) as answer,
        ):
            body = await answer.read()
            return web.Response(status=answer.status, body=body, content_type=answer.content_type)


def rollout(args):
    init_http_client(args)
    output = generate_rollout(args, 0, RolloutDataSourceWithBuffer(args))
    assert len(output.samples) == 16
    for group in output.samples:
        assert len(group) == 4
        assert all(s.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED) for s in group)
    return output


def test_a_router_that_answers_503_for_ten_seconds(make_args, servers, tmp_path):
    addresses, port = servers
    until = time.monotonic() + 10
    proxy = Proxy(port, lambda call: 503 if time.monotonic() < until else None)
    _, args = make_args(tmp_path, addresses, proxy.port, train=SMALL)
    rollout(args)
    assert time.monotonic() > until and proxy.calls < 30 * 32 * 4  # it backed off


def test_requests_that_hang_are_sent_again(make_args, servers, tmp_path):
    addresses, port = servers
    proxy = Proxy(port, lambda call: "hang" if call % 10 == 0 else None)
    slime = {"request_timeout_seconds": 2, "retry_seconds": 60}
    _, args = make_args(tmp_path, addresses, proxy.port, train=SMALL, slime=slime)
    rollout(args)


def test_an_engine_killed_in_mid_rollout(trained, tmp_path, caplog):
    """SLIME's fault tolerance, which we ask for, takes it from the router."""
    caplog.set_level(logging.WARNING)
    with server(trained) as (one, _), server(trained) as (two, victim), router(one, two) as port:

        def take_out():
            workers = requests.get(f"http://127.0.0.1:{port}/workers").json()["workers"]
            (dead,) = [worker["id"] for worker in workers if worker["url"] == f"http://{two}"]
            requests.delete(f"http://127.0.0.1:{port}/workers/{dead}").raise_for_status()

        def fault(call):
            if call == 100:
                victim.kill()
                threading.Timer(3, take_out).start()

        proxy = Proxy(port, fault)
        slime = {"retry_seconds": 5, "request_timeout_seconds": 3}
        _, args = slime_args(trained, tmp_path, (one, two), proxy.port, train=SMALL, slime=slime)
        output = rollout(args)
    failed = [record for record in caplog.records if record.name == LOGGER]
    assert victim.poll() is not None and proxy.calls > 100
    assert all("\n" not in record.getMessage() for record in failed)
    assert bool(failed) == ("rollout/dynamic_filter/drop_no_failed_episode" in output.metrics)


def test_a_partner_that_is_gone_now_and_then(make_args, servers, tmp_path, matching, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    asked = itertools.count(1)

    class Moody:
        def __init__(self, partner):
            self.partner = partner
            self.recall = partner.recall

        async def respond(self, observation):
            if next(asked) % 40 == 0:
                raise PlayerFailed from ConnectionError("the partner is gone")
            return await self.partner.respond(observation)

    kind = type(matching.taskset)
    steady = kind.player
    monkeypatch.setattr(kind, "player", lambda *given: Moody(steady(*given)))
    _, args = make_args(tmp_path, *servers, train=SMALL)
    output = rollout(args)
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert lines and all("failed: ConnectionError: the partner is gone" in line for line in lines)
    assert output.metrics["rollout/dynamic_filter/drop_no_failed_episode"] <= len(lines)


def test_interrupted_dialogues_come_back_and_end(make_args, servers, tmp_path):
    _, args = make_args(tmp_path, *servers, train=SMALL, slime={"arguments": ["--partial-rollout"]})
    init_http_client(args)
    source = RolloutDataSourceWithBuffer(args)
    resumed = []
    for rollout_id in range(6):
        output = generate_rollout(args, rollout_id, source)
        resumed += [s for g in output.samples for s in g if "start_rollout_id" in s.metadata]
    assert resumed, "nothing was interrupted"
    for sample in resumed:
        trace = sample.metadata["played"].episode.traces["player-1"]
        assert sample.tokens == trace.token_ids and sum(sample.loss_mask) == sum(trace.loss_mask)
        assert [t for t, m in zip(sample.rollout_log_probs, sample.loss_mask, strict=True) if m]
