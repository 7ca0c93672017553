"""The local engine behind SGLang's interface, over real HTTP, and the engine that speaks it."""

import asyncio
import sys
import time
import urllib.request
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slim_rl.core.errors import UserError
from slim_rl.engines.engine import EngineFailed, Sampling
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.sglang import SGLangEngine, serving
from slim_rl.training.checkpoint import save_model
from slim_rl.training.warmstart import tiny_qwen
from tests.sglang_server import Server
from tests.workspaces import ROOT

PROMPT = [5, 6, 7, 8]


@asynccontextmanager
async def answering(app):
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


def client(url, **settings):
    return SGLangEngine(url, 512, **{"retry_seconds": 2.0, "timeout_seconds": 5.0} | settings)


def ask(model, tokenizer, requests, check_status=200):
    """Answers to (path, body) requests, one after the other, from one server."""

    async def talk():
        answers = []
        app = Server(LocalEngine(model), tokenizer, "tiny").app()
        async with answering(app) as url, aiohttp.ClientSession() as session:
            for path, body in requests:
                kwargs = {"data": body} if isinstance(body, bytes) else {"json": body}
                async with session.request("GET" if body is None else "POST", url + path, **kwargs) as reply:
                    assert reply.status == check_status, await reply.text()
                    json = reply.content_type == "application/json"
                    answers.append(await (reply.json() if json else reply.text()))
        return answers

    return asyncio.run(talk())


def generate(model, tokenizer, **params):
    body = {"input_ids": PROMPT, "return_logprob": True, "sampling_params": {"sampling_seed": 1, **params}}
    return ask(model, tokenizer, [("/generate", body)])[0]


def test_over_http_comes_what_the_engine_samples_itself(model, tokenizer):
    prompts = [PROMPT, [9, 10], [11] * 30]
    samplings = [Sampling(12, 0.8, (3,), seed=seed, session=f"s{seed}") for seed in range(3)]

    async def over_http():
        async with answering(Server(LocalEngine(model), tokenizer, "tiny").app()) as url:
            engine = client(url)
            try:
                return await asyncio.gather(*map(engine.generate, prompts, samplings))
            finally:
                await engine.close()

    async def directly():
        engine = LocalEngine(model)
        eos = tokenizer.eos_token_id
        with_eos = [Sampling(12, 0.8, (3, eos), seed=s.seed) for s in samplings]
        return await asyncio.gather(*map(engine.generate, prompts, with_eos))

    for ours, theirs in zip(asyncio.run(over_http()), asyncio.run(directly()), strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-6)
        assert ours.finish_reason == theirs.finish_reason


def test_a_stop_string_ends_the_text_where_it_appears(model, tokenizer):
    whole = generate(model, tokenizer, max_new_tokens=12, ignore_eos=True)
    piece = tokenizer.decode(whole["output_ids"][3:4])
    kept = generate(model, tokenizer, max_new_tokens=12, ignore_eos=True, stop=piece, no_stop_trim=True)
    trimmed = generate(model, tokenizer, max_new_tokens=12, ignore_eos=True, stop=[piece])
    assert kept["meta_info"]["finish_reason"] == {"type": "stop", "matched": piece}
    assert kept["output_ids"] == whole["output_ids"][: len(kept["output_ids"])]
    assert piece in kept["text"] and piece not in trimmed["text"]
    assert len(kept["meta_info"]["output_token_logprobs"]) == len(kept["output_ids"])


def test_a_stop_token_is_trimmed_from_the_ids_but_not_from_the_logprobs(model, tokenizer):
    whole = generate(model, tokenizer, max_new_tokens=12, ignore_eos=True)
    stop = whole["output_ids"][4]
    trimmed = generate(model, tokenizer, max_new_tokens=12, ignore_eos=True, stop_token_ids=[stop])
    sampled = [token for _, token, _ in trimmed["meta_info"]["output_token_logprobs"]]
    assert sampled[-1] == stop and sampled[:-1] == trimmed["output_ids"]


def test_n_samples_are_independent_and_a_seed_repeats_them(model, tokenizer):
    two = generate(model, tokenizer, max_new_tokens=12, n=2)
    assert two[0]["output_ids"] != two[1]["output_ids"]
    again = generate(model, tokenizer, max_new_tokens=12, n=2)
    assert [a["output_ids"] for a in two] == [a["output_ids"] for a in again]


@pytest.mark.parametrize("by", ["rid", "abort_all"])
def test_an_abort_ends_a_request_with_the_tokens_there_are(model, tokenizer, by):
    async def talk():
        async with (
            answering(Server(LocalEngine(model), tokenizer, "tiny").app()) as url,
            aiohttp.ClientSession() as session,
        ):
            params = {"max_new_tokens": 500, "ignore_eos": True}
            body = {"input_ids": PROMPT, "rid": "it", "return_logprob": True, "sampling_params": params}
            answer = asyncio.create_task(session.post(f"{url}/generate", json=body))
            await asyncio.sleep(0.1)
            async with session.get(f"{url}/v1/loads?include=core") as loads:
                assert (await loads.json())["loads"][0]["num_running_reqs"] == 1
            await session.post(f"{url}/abort_request", json={"rid": "it"} if by == "rid" else {by: True})
            return await (await answer).json()

    answer = asyncio.run(talk())
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(answer["output_ids"]) < 500


def test_weights_from_disk_replace_the_old_ones(model, tokenizer, tmp_path):
    other = tiny_qwen(tokenizer, max_context_tokens=512, seed=9)
    save_model(tmp_path / "other", other, tokenizer)
    body = {"input_ids": PROMPT, "return_logprob": True, "sampling_params": {"sampling_seed": 1}}
    update = {"model_path": str(tmp_path / "other"), "weight_version": "7"}
    before, _, after, info = ask(
        model,
        tokenizer,
        [
            ("/generate", body),
            ("/update_weights_from_disk", update),
            ("/generate", body),
            ("/get_model_info", None),
        ],
    )
    expected = ask(other, tokenizer, [("/generate", body)])[0]
    assert before["output_ids"] != after["output_ids"] == expected["output_ids"]
    assert after["meta_info"]["weight_version"] == info["weight_version"] == "7"


def test_weights_of_another_model_are_refused_and_the_old_ones_stay(model, tokenizer, tmp_path):
    save_model(tmp_path / "longer", tiny_qwen(tokenizer, 512, seed=0), tokenizer)
    (tmp_path / "longer/model.safetensors").write_bytes(b"not weights")
    for path in ("longer", "nowhere"):
        (answer,) = ask(model, tokenizer, [("/update_weights_from_disk", {"model_path": str(tmp_path / path)})], 400)
        assert not answer["success"] and path in answer["message"]
    assert generate(model, tokenizer)["output_ids"]


def test_a_bad_request_gets_400_and_a_sentence(model, tokenizer):
    bad = [
        ("/generate", b"{", "not JSON"),
        ("/generate", {}, "input_ids"),
        ("/generate", {"input_ids": "What is it?"}, "input_ids is What is it?"),
        ("/generate", {"input_ids": [10**6]}, "outside of the vocabulary"),
        ("/generate", {"input_ids": [1] * 512}, "context of 512"),
        ("/generate", {"input_ids": [1], "sampling_params": {"top_p": 0.9}}, "top_p is 0.9"),
        ("/generate", {"input_ids": [1], "sampling_params": {"temprature": 1}}, "temprature"),
        ("/generate", {"input_ids": [1], "stream": True}, "stream is True"),
        ("/abort_request", {}, "which requests"),
        ("/update_weights_from_disk", {}, "model_path"),
    ]
    answers = ask(model, tokenizer, [(path, body) for path, body, _ in bad], 400)
    for (*_, words), answer in zip(bad, answers, strict=True):
        assert words in answer["error"]["message"]


def test_what_slime_and_the_router_ask_for_is_there(model, tokenizer):
    paths = ("/health", "/health_generate", "/server_info", "/v1/models", "/flush_cache")
    ask(model, tokenizer, [(path, None) for path in paths])


# The engine that speaks it, against a server that fails on purpose.

GOOD = {
    "text": "",
    "meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[-1.0, 7, None]]},
}


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
        async with answering(app) as url:
            engine = client(url, **settings)
            try:
                return await engine.generate(PROMPT, Sampling(5))
            finally:
                await engine.close()

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
    ],
)
def test_any_other_failure_is_not_retried(reply, words):
    app, calls = failing(reply)
    with pytest.raises(EngineFailed, match=words):
        one_request(app)
    assert len(calls) == 1


def test_an_engine_that_stays_away_fails():
    app, _ = failing(503)
    started = time.monotonic()
    with pytest.raises(EngineFailed, match=r"tried for 1 s; at last: .*503"):
        one_request(app, retry_seconds=1.0)
    assert time.monotonic() - started < 15


@pytest.mark.slow
def test_a_server_is_run_for_a_checkpoint_and_ended(model, tokenizer, tmp_path):
    save_model(tmp_path / "model", model, tokenizer)
    command = f"{sys.executable} {ROOT}/tests/sglang_server.py --model {{model}} --port {{port}}"
    expected = asyncio.run(LocalEngine(model).generate(PROMPT, Sampling(1, 0.0)))
    with serving(command, tmp_path / "model") as url:
        engine = client(url)
        for _ in range(2):  # each with an event loop of its own, as `collect` has
            assert asyncio.run(engine.generate(PROMPT, Sampling(1, 0.0))).token_ids == expected.token_ids
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
