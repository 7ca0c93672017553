"""The engine that speaks SGLang's interface, over real HTTP: to the local engine, and to a server that fails."""

import asyncio
import sys
import urllib.request
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slim_rl.core.errors import UserError
from slim_rl.engines.engine import EngineFailed, Sampling
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.sglang import SGLangEngine, serving
from tests.sglang_server import Server

PROMPT = [5, 6, 7, 8]


@asynccontextmanager
async def answering(app):
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


def client(url, **settings):
    return SGLangEngine(url, 512, **{"retry_seconds": 2.0, "timeout_seconds": 5.0} | settings)


def test_over_http_comes_what_the_engine_samples_itself(model, tokenizer):
    prompts = [PROMPT, [9, 10], [11] * 30]
    samplings = [Sampling(12, 0.8, (3,), seed=seed, session=f"s{seed}") for seed in range(3)]

    async def over_http():
        app = Server(LocalEngine(model), tokenizer.eos_token_id, "tiny").app()
        async with answering(app) as url, client(url) as engine:
            return await asyncio.gather(*map(engine.generate, prompts, samplings))

    async def directly():
        engine = LocalEngine(model)
        eos = tokenizer.eos_token_id
        with_eos = [Sampling(12, 0.8, (3, eos), seed=s.seed) for s in samplings]
        return await asyncio.gather(*map(engine.generate, prompts, with_eos))

    for ours, theirs in zip(asyncio.run(over_http()), asyncio.run(directly()), strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-6)
        assert ours.finish_reason == theirs.finish_reason


META = {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[-1.0, 7, None]]}
GOOD = {"text": "", "meta_info": META}


def failing(*replies):
    """A server that gives `replies` one after the other, then the last one again and again, and its calls."""
    calls = []

    async def answer(request):
        calls.append(await request.json())
        reply = replies[min(len(calls), len(replies)) - 1]
        if reply == "hang":
            await asyncio.sleep(30)
        if reply == "drop":
            request.transport.close()
        if isinstance(reply, int):
            return web.Response(status=reply, text="no")
        return web.json_response(reply) if isinstance(reply, dict) else web.Response(text="{")

    app = web.Application()
    app.add_routes([web.post("/generate", answer)])
    return app, calls


def one_request(app, **settings):
    async def talk():
        async with answering(app) as url, client(url, **settings) as engine:
            return await engine.generate(PROMPT, Sampling(5))

    return asyncio.run(talk())


@pytest.mark.parametrize("fault", [503, 429, 500, "drop", "garbage", "hang"])
def test_a_transient_failure_is_retried(fault):
    app, calls = failing(fault, fault, GOOD)
    assert one_request(app, timeout_seconds=0.3, retry_seconds=20).token_ids == [7]
    assert len(calls) == 3 and calls[0] == calls[2]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (400, "answered 400: no"),
        ({"meta_info": {}}, "not SGLang's"),
        ({"meta_info": {"finish_reason": {"type": "stop"}}}, "strip meta_info"),
        *(({"meta_info": {**META, "output_token_logprobs": [pair]}}, words) for pair, words in (
            *(([value, 7, None], "no finite number") for value in (float("nan"), float("-inf"), None)),
            *(([-1.0, token, None], "is no token") for token in (100, -1, "7", 7.9, True, None)),
            *(([logprob, 7, None], f"{logprob} is no log-prob") for logprob in (7.0, False)))),
        ({"meta_info": {**META, "finish_reason": {"type": "content_filter"}}}, "content_filter"),
        ({"meta_info": []}, "not SGLang's"),
    ],
)  # fmt: skip
def test_any_other_failure_is_not_retried(reply, words):
    app, calls = failing(reply)
    with pytest.raises(EngineFailed, match=words):
        one_request(app, vocab_size=100)
    assert len(calls) == 1


def test_an_engine_that_stays_away_fails_and_at_the_end_no_connection_is_open():
    """tests/runtime/test_retry.py has when."""
    app, calls = failing(503)

    async def talk():
        async with TestServer(app) as server:
            with pytest.raises(EngineFailed, match=r"tried for 1 s; at last: .*503"):
                async with client(str(server.make_url("")), retry_seconds=1.0) as engine:
                    await engine.generate(PROMPT, Sampling(5))
            assert len(calls) > 1
            while server.runner.server.connections:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(talk(), 30))


def test_a_server_is_run_for_a_checkpoint_and_ended_whatever_proxy_the_environment_names(tmp_path, monkeypatch):
    """A server of files; in tests/studies/test_series.py it is one with a model."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    (tmp_path / "health").touch()
    with serving(f"{sys.executable} -m http.server --directory {{model}} {{port}}", tmp_path) as url:
        monkeypatch.delenv("http_proxy")
        assert urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{url}/health", timeout=1)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("false {model}", "The server false .* did not come up"),
        ("no-such-program {model}", "The server 'no-such-program {model}' cannot be started: .*No such file"),
        ("false {weights}", "cannot be started: 'weights'"),
        ("false 'quoted", "cannot be started: No closing quotation"),
    ],
)
def test_a_server_that_does_not_come_up_is_reported_in_a_sentence(tmp_path, command, sentence):
    with pytest.raises(UserError, match=sentence), serving(command, tmp_path):
        pass
