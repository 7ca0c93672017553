"""A rollout of SLIME's own ends whatever goes wrong on the way, and no group is left half."""

import asyncio
import itertools
import logging
import threading
import time
from dataclasses import replace

import aiohttp
from aiohttp import web
from conftest import free_port, router, server
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils.http_utils import init_http_client
from slime.utils.types import Sample

from slim_rl.players.player import PlayerFailed
from slim_rl.seating import make_table
from slim_rl.slime import hooks

SMALL = {"games_per_step": 16, "samples_per_game": 4}


class Proxy:
    """Stands before the router and does to `/generate` what `fault(call number)` says: a status, "hang" or None."""

    def __init__(self, router_port, fault):
        self.port, self.calls, self.fault = free_port(), 0, fault
        self._target = f"http://127.0.0.1:{router_port}"
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        asyncio.set_event_loop(self._loop)
        app = web.Application(client_max_size=2**26)
        app.add_routes([web.route("*", "/{path:.*}", self._pass)])
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", self.port).start())
        self._loop.run_forever()

    async def _pass(self, request):
        if request.path == "/generate":
            self.calls += 1
            what = self.fault(self.calls)
            if what == "hang":
                await asyncio.sleep(3600)
            if what:
                return web.Response(status=what, text="on purpose")
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method,
                self._target + request.path_qs,
                data=await request.read(),
                headers=request.headers,
            ) as answer,
        ):
            return web.Response(
                status=answer.status, body=await answer.read(), content_type=answer.content_type
            )


def rollout(args):
    init_http_client(args)
    output = generate_rollout(args, 0, RolloutDataSourceWithBuffer(args))
    assert len(output.samples) == 16
    for group in output.samples:
        assert len(group) == 4
        assert all(s.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED) for s in group)
    return output


def test_a_router_that_answers_503_for_half_a_minute(make_args, servers, tmp_path):
    addresses, port = servers
    until = time.monotonic() + 30
    proxy = Proxy(port, lambda call: 503 if time.monotonic() < until else None)
    _, args = make_args(tmp_path, addresses, proxy.port, train=SMALL)
    rollout(args)
    assert time.monotonic() > until and proxy.calls < 60 * 32 * 4  # it backed off


def test_requests_that_hang_are_sent_again(make_args, servers, tmp_path):
    addresses, port = servers
    proxy = Proxy(port, lambda call: "hang" if call % 10 == 0 else None)
    slime = {"request_timeout_seconds": 2, "retry_seconds": 60}
    _, args = make_args(tmp_path, addresses, proxy.port, train=SMALL, slime=slime)
    rollout(args)


def test_an_engine_killed_in_mid_rollout(make_args, workspace, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    with server(workspace) as (one, _), server(workspace) as (two, victim), router(one, two) as port:
        proxy = Proxy(port, lambda call: victim.kill() if call == 100 else None)
        slime = {"retry_seconds": 5, "request_timeout_seconds": 3}
        _, args = make_args(tmp_path, (one, two), proxy.port, train=SMALL, slime=slime)
        output = rollout(args)
    failed = [r for r in caplog.records if r.name == "slim_rl.slime.hooks"]
    assert victim.poll() is not None and proxy.calls > 100
    assert all("\n" not in record.getMessage() for record in failed)
    assert bool(failed) == ("rollout/dynamic_filter/drop_no_failed_episode" in output.metrics)


def test_a_partner_that_is_gone_now_and_then(make_args, servers, tmp_path, monkeypatch, caplog):
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

    def moody_table(*given):
        table = make_table(*given)
        shy = table.makers["scripted"]
        return replace(table, makers={**table.makers, "scripted": lambda *seat: Moody(shy(*seat))})

    monkeypatch.setattr(hooks, "make_table", moody_table)
    _, args = make_args(tmp_path, *servers, train=SMALL)
    output = rollout(args)
    lines = [r.getMessage() for r in caplog.records if r.name == "slim_rl.slime.hooks"]
    assert lines and all("failed: ConnectionError: the partner is gone" in line for line in lines)
    assert output.metrics["rollout/dynamic_filter/drop_no_failed_episode"] <= len(lines)


def test_interrupted_dialogues_come_back_and_end(make_args, servers, tmp_path):
    slime = {"partial_rollout": True}
    _, args = make_args(tmp_path, *servers, train=SMALL, slime=slime)
    args.partial_rollout = True
    init_http_client(args)
    source = RolloutDataSourceWithBuffer(args)
    resumed = []
    for rollout_id in range(6):
        output = generate_rollout(args, rollout_id, source)
        resumed += [s for g in output.samples for s in g if s.metadata["interruptions"]]
    assert resumed, "nothing was interrupted"
    for sample in resumed:
        trace = sample.metadata["episode"].traces["player-1"]
        assert sample.tokens == trace.token_ids and sum(sample.loss_mask) == sum(trace.loss_mask)
        assert [t for t, m in zip(sample.rollout_log_probs, sample.loss_mask, strict=True) if m]
