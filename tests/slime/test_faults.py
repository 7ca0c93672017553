"""A rollout of SLIME's own ends whatever goes wrong on the way, and no group is left half."""

import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
import requests
from aiohttp import web
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils import health_monitor
from slime.utils.http_utils import init_http_client
from slime.utils.types import Sample

from slim_rl.core.errors import UserError
from slim_rl.slime.arguments import arguments
from slim_rl.slime.parameters import RunParameters
from tests.slime.support import Serving, free_port, router, server, slime_args

SMALL = {"games_per_step": 16, "samples_per_game": 4}


class Proxy(Serving):
    """Stands before the router and does to `/generate` what `fault(call number)` says: a status or None."""

    def __init__(self, router_port, fault):
        self.calls, self.fault = 0, fault
        self._target = f"http://127.0.0.1:{router_port}"
        super().__init__(self._pass)

    async def _pass(self, request):
        if request.path == "/generate":
            self.calls += 1
            what = self.fault(self.calls)
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


class Handle:
    """What SLIME's health monitor calls of an engine's Ray actor (`slime/backends/sglang_utils/sglang_engine.py`)."""

    def __init__(self, address, router_port):
        self.url, self._workers = f"http://{address}", f"http://127.0.0.1:{router_port}/workers"
        self.health_generate = SimpleNamespace(remote=self._check)
        self.shutdown = SimpleNamespace(remote=self._take_from_router)

    def _check(self, timeout):
        requests.get(f"{self.url}/health_generate", timeout=timeout).raise_for_status()

    def _take_from_router(self):
        (dead,) = [w["id"] for w in requests.get(self._workers).json()["workers"] if w["url"] == self.url]
        requests.delete(f"{self._workers}/{dead}").raise_for_status()


@pytest.fixture
def monitor(monkeypatch):
    """A function that starts SLIME's own health monitor, if the arguments ask for fault tolerance."""
    monkeypatch.setattr(health_monitor, "ray", SimpleNamespace(get=lambda done: done, kill=lambda handle: None))
    with ExitStack() as running:

        def start(args, addresses, router_port):
            assert args.use_fault_tolerance
            handles = [Handle(address, router_port) for address in addresses]
            group = SimpleNamespace(engines=handles, all_engines=handles, nodes_per_engine=1)
            watching = health_monitor.RolloutHealthMonitor(group, args)
            watching.start()
            watching.resume()
            running.callback(watching.stop)

        yield start


def test_an_engine_killed_in_mid_rollout_costs_seconds(trained, tmp_path, monitor):
    """SLIME's fault tolerance takes it from the router, long before our retries end."""
    with server(trained) as (one, _), server(trained) as (two, victim), router(one, two) as port:
        proxy = Proxy(port, lambda call: victim.kill() if call == 100 else None)
        slime = {"retry_seconds": 900, "arguments": ["--rollout-health-check-interval", "1"]}
        _, args = slime_args(trained, tmp_path, (one, two), proxy.port, train=SMALL, slime=slime)
        args.use_fault_tolerance = "--use-fault-tolerance" in launched(slime)
        monitor(args, (one, two), port)
        began = time.monotonic()
        output = rollout(args)
        assert victim.poll() is not None and proxy.calls > 100
        assert output.metrics.get("rollout/dynamic_filter/drop_no_failed_episode", 0) <= 2  # of 16 groups and more
        assert time.monotonic() - began < 300  # it did not wait for a request to be given up
        after = generate_rollout(args, 1, RolloutDataSourceWithBuffer(args))
        assert "rollout/dynamic_filter/drop_no_failed_episode" not in after.metrics


def launched(slime):
    """The flags of a run whose engines SLIME starts itself."""
    parameters = RunParameters.model_validate({"games": {"matching": {}}, "slime": slime})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slim_rl.slime.arguments.model_arguments", lambda *_: [])
        return arguments(parameters, Path("base"), Path("run"))


def test_a_router_that_is_gone_ends_the_training(make_args, tmp_path):
    slime = {"retry_seconds": 4, "request_timeout_seconds": 2}
    port = free_port()
    _, args = make_args(tmp_path, (), port, train=SMALL, slime=slime)
    init_http_client(args)
    began = time.monotonic()
    with pytest.raises(
        UserError, match=rf"SLIME's router .* gone: http://127\.0\.0\.1:{port}/generate was tried for 4 s"
    ):
        generate_rollout(args, 0, RolloutDataSourceWithBuffer(args))
    assert time.monotonic() - began < 1.5 * 4 + 2  # a second or two for the first turn of each episode


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
