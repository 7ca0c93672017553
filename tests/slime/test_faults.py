"""A rollout of SLIME's own ends whatever goes wrong on the way, and no group is left half."""

from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace

import aiohttp
import pytest
import requests
from aiohttp import web
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils import health_monitor
from slime.utils.http_utils import init_http_client
from slime.utils.types import Sample

from slim_rl.core.errors import UserError
from tests.slime.support import Serving, data_source, free_port, router, server, slime_args

SMALL = {"games_per_step": 16, "samples_per_game": 4}


class Proxy:
    """Stands before the router and does to `/generate` what `fault(call number)` says: a status or None."""

    def __init__(self, router_port, fault):
        self.calls, self.fault = 0, fault
        self._target = f"http://127.0.0.1:{router_port}"
        app = web.Application(client_max_size=2**26)
        app.add_routes([web.route("*", "/{path:.*}", self._pass)])
        self.port = Serving(app).port

    async def _pass(self, request):
        if request.path == "/generate":
            self.calls += 1
            if status := self.fault(self.calls):
                return web.Response(status=status, text="on purpose")
        url, data = self._target + request.path_qs, await request.read()
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, url, data=data, headers=request.headers) as answer,
        ):
            body = await answer.read()
            return web.Response(status=answer.status, body=body, content_type=answer.content_type)


def rollout(args):
    init_http_client(args)
    output = generate_rollout(args, 0, data_source(args))
    assert len(output.samples) == 16
    for group in output.samples:
        assert len(group) == 4
        assert all(s.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED) for s in group)
    return output


def test_a_router_that_answers_503_for_a_while(make_args, servers, tmp_path):
    addresses, port = servers
    proxy = Proxy(port, lambda call: 503 if call <= 300 else None)
    _, args = make_args(tmp_path, addresses, proxy.port, train=SMALL)
    assert "rollout/dynamic_filter/drop_no_failed_episode" not in rollout(args).metrics
    assert proxy.calls > 300


class Handle:
    """What SLIME's health monitor calls of an engine's Ray actor (`slime/backends/sglang_utils/sglang_engine.py`)."""

    def __init__(self, address, router_port):
        self.url, self._workers = f"http://{address}", f"http://127.0.0.1:{router_port}/workers"
        self.health_generate = SimpleNamespace(remote=partial(partial, self._check))
        self.shutdown = SimpleNamespace(remote=partial(partial, self.take_from_router))

    def _check(self, timeout):
        requests.get(f"{self.url}/health_generate", timeout=timeout).raise_for_status()

    def take_from_router(self):
        (dead,) = [w["id"] for w in requests.get(self._workers).json()["workers"] if w["url"] == self.url]
        requests.delete(f"{self._workers}/{dead}").raise_for_status()


@pytest.fixture
def monitor(monkeypatch):
    """A function that starts SLIME's own health monitor, with the intervals of our flags."""
    ray = SimpleNamespace(get=lambda call, **_: call(), wait=lambda *_, **__: None, kill=lambda handle: None)
    monkeypatch.setattr(health_monitor, "ray", ray)
    with ExitStack() as running:

        def start(args, addresses, router_port):
            handles = [Handle(address, router_port) for address in addresses]
            group = SimpleNamespace(engines=handles, all_engines=handles, nodes_per_engine=1)

            def retire(number, timeout):  # 0.4
                handles[number].take_from_router()
                handles[number] = None

            group.retire_engine = retire
            watching = health_monitor.RolloutHealthMonitor(group, args)
            watching.start()
            watching.resume()
            running.callback(watching.stop)

        yield start


def test_an_engine_killed_in_mid_rollout_costs_few_groups(trained, tmp_path, monitor):
    """SLIME's fault tolerance takes it from the router, long before our retries end."""
    with server(trained) as (one, _), server(trained) as (two, victim), router(one, two) as port:
        proxy = Proxy(port, lambda call: victim.kill() if call == 100 else None)
        slime = {"retry_seconds": 900, "arguments": ["--rollout-health-check-interval", "1"]}
        _, args = slime_args(trained, tmp_path, (one, two), proxy.port, train=SMALL, slime=slime)
        monitor(args, (one, two), port)
        output = rollout(args)
        assert victim.poll() is not None and proxy.calls > 100
        assert output.metrics.get("rollout/dynamic_filter/drop_no_failed_episode", 0) <= 2  # of 16 groups and more
        after = generate_rollout(args, 1, data_source(args))
        assert "rollout/dynamic_filter/drop_no_failed_episode" not in after.metrics


def test_a_router_that_is_gone_ends_the_training(make_args, tmp_path):
    slime = {"retry_seconds": 4, "request_timeout_seconds": 2}
    port = free_port()
    _, args = make_args(tmp_path, (), port, train=SMALL, slime=slime)
    init_http_client(args)
    with pytest.raises(UserError, match=rf"router .* gone: http://127\.0\.0\.1:{port}/generate"):
        generate_rollout(args, 0, data_source(args))


def test_interrupted_dialogues_come_back_and_end(make_args, servers, tmp_path):
    _, args = make_args(tmp_path, *servers, train=SMALL, slime={"arguments": ["--partial-rollout"]})
    init_http_client(args)
    source, resumed = data_source(args), []
    while not resumed:
        output = generate_rollout(args, 0, source)
        resumed += [s for g in output.samples for s in g if "start_rollout_id" in s.metadata]
    for sample in resumed:
        trace = sample.metadata["played"].episode.traces["player-1"]
        assert sample.tokens == trace.token_ids and sum(sample.loss_mask) == sum(trace.loss_mask)
        assert [t for t, m in zip(sample.rollout_log_probs, sample.loss_mask, strict=True) if m]
