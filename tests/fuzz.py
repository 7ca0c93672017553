"""Answers and files with mutations: each is refused in a sentence, or read as what it says.

python -m tests.fuzz [TARGET ...] [--examples 5000]
"""

import argparse
import asyncio
import atexit
import copy
import json
import math
import shutil
import ssl
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import yaml
from aiohttp import web
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from slim_rl.core.errors import EpisodeFailed, UserError
from slim_rl.core.message import Message, ToolCall
from tests.settings import merged

ROOT = Path(__file__).parents[1]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

ODD = [
    None, True, False, 0, -1, 1, 3, 0.5, 7.9, -1e-9, 1e308, math.nan, math.inf, -math.inf, 2**31, 2**70, 10**400, "", "7", "true",
    " ", "a/b", "../x", "\0", "\ud800", "\ufdd0", "<|im_end|>", "{{ x }}", "x" * 3000, [], {}, [None], [[]], [7], ["x"], {"": None},
    {"x": 7}, {"type": "text"},
]  # fmt: skip
"""What stands in a place of another kind."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all parts of a JSON value, shallow parts first."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:20]) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def part_at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


@st.composite
def mutants(draw: Any, whole: Any, dump: Callable[[Any], str] = json.dumps) -> bytes:
    """A JSON value with one or two changes, as text; now and then the text itself is damaged."""
    value = {"": copy.deepcopy(whole)}
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from([path for path in places(value) if path]))
        holder, key = part_at(value, path[:-1]), path[-1]
        change = draw(st.sampled_from(["replace", "replace", "replace", "drop", "wrap", "move", "twice", "add"]))
        if change == "drop" and len(path) > 1:
            del holder[key]
        elif change == "wrap":
            holder[key] = draw(st.sampled_from([[holder[key]], {"x": holder[key]}, str(holder[key])]))
        elif change == "move":
            holder[key] = copy.deepcopy(part_at(value, draw(st.sampled_from([path for path in places(value) if path]))))
        elif change == "twice" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif change == "add" and isinstance(holder[key], dict):
            name = draw(st.sampled_from(["x", "", "type", "error", *holder[key]]))
            holder[key][name] = copy.deepcopy(draw(st.sampled_from(ODD)))
        else:
            holder[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
    text = dump(value[""]).encode("utf-8", "surrogatepass")
    match draw(st.integers(0, 40)):
        case 0:
            return text[: draw(st.integers(0, len(text)))]
        case 1:
            place = draw(st.integers(0, len(text)))
            return text[:place] + draw(st.sampled_from([b"\xff", b"\0", b'"', b"}", b",", b"\n", b" "])) + text[place:]
    return text


class Server:
    """Answers each path with the bytes that `answers` has for it, in a thread of its own."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str, bytes]] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    async def _start(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def _answer(self, request: web.Request) -> web.Response:
        await request.read()
        status, kind, body = self.answers.get(request.path, (404, "text/plain", b""))
        return web.Response(status=status, content_type=kind, body=body)


@cache
def server() -> Server:
    return Server()


def parsed(data: bytes) -> Any:
    return json.loads(data.decode("utf-8-sig"))


# Chat completions

COMPLETION = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m", "system_fingerprint": None,
    "choices": [{
        "index": 0, "finish_reason": "stop", "logprobs": None,
        "message": {"role": "assistant", "content": "[accept]", "refusal": None, "reasoning_content": "Hm", "tool_calls": []},
    }],
    "usage": {"prompt_tokens": 300, "completion_tokens": 12, "total_tokens": 312, "prompt_tokens_details": {"cached_tokens": 8}},
}  # fmt: skip
REFUSAL = {"error": {"message": "too long", "type": "invalid_request_error", "param": "messages", "code": "x"}}
ASKED = [{"role": "user", "content": "Hi"}]


def chat(data: bytes) -> None:
    """The text is what the first choice says, the tokens are those of the usage, and the cost is theirs."""
    reply, totals = _asked((200, data))
    message, choice = (told := parsed(data))["choices"][0]["message"], told["choices"][0]
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": "" if content is None else content}]
    text = "".join(part["text"] for part in parts if "think" not in part["type"])
    assert reply.text == text.encode(errors="replace").decode()
    assert reply.cut == (str(choice.get("finish_reason")).lower() in ("length", "max_tokens"))
    usage = told.get("usage")
    tokens = [usage.get(f"{kind}_tokens") if isinstance(usage, dict) else None for kind in ("prompt", "completion")]
    if any(isinstance(n, str | bool) for n in tokens):
        return  # the client may read "7" and true as numbers
    if all(isinstance(n, int) and 0 <= n < 2**32 for n in tokens):
        assert [totals["prompt_tokens"], totals["completion_tokens"]] == tokens
        assert tokens[1] * 8e-6 - 1e-9 <= totals["dollars"] * (1 + 1e-9)
        assert totals["dollars"] <= (tokens[0] * 2e-6 + tokens[1] * 8e-6) * (1 + 1e-9)
    else:
        assert totals["estimated_calls"] == 1


def refusals(data: bytes) -> None:
    for status in (400, 429):
        try:
            _asked((status, data))
        except (UserError, EpisodeFailed):
            continue
        raise AssertionError(f"{status} is no reply")


def _asked(answer: tuple[int, bytes]) -> Any:
    from slim_rl.players.chat import ChatService
    from slim_rl.players.config import Price, ServiceConfig
    from slim_rl.players.ledger import Ledger

    async def ask() -> Any:
        config = ServiceConfig(base_url=server().url, key_variable=None, max_retries=0, model="m")
        ledger = Ledger(None, Price(prompt=2, cached_prompt=0.5, completion=8), "test")
        async with ChatService("partner", config, ledger) as service:
            server().answers = {"/chat/completions": (200, "application/json", json.dumps(COMPLETION).encode())}
            await service.reply(ASKED, 0)
            before = Counter(ledger.totals)
            server().answers = {"/chat/completions": (answer[0], "application/json", answer[1])}
            reply = await service.reply(ASKED, 1)
            return reply, {name: n - before[name] for name, n in ledger.totals.items()}

    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loading certificates takes most of the time
    with patch("ssl.create_default_context", lambda *_, **__: bare):
        return asyncio.run(ask())


# SGLang

GENERATION = {
    "text": "ab", "output_ids": [5, 6, 3],
    "meta_info": {
        "id": "g", "finish_reason": {"type": "stop", "matched": 3}, "prompt_tokens": 4, "completion_tokens": 3, "cached_tokens": 0,
        "output_token_logprobs": [[-0.5, 5, None], [-1.25, 6, None], [-0.125, 3, None]],
    },
}  # fmt: skip


def sglang(data: bytes) -> None:
    """Token ids are integers of the vocabulary, log-probs finite and not positive, and the reason is one that is known."""
    from slim_rl.engines.engine import Sampling
    from slim_rl.engines.sglang import SGLangEngine

    async def ask() -> Any:
        server().answers = {"/generate": (200, "application/json", data)}
        async with SGLangEngine(server().url, 512, 0.0, 5.0, vocab_size=100) as engine:
            return await engine.generate([5, 6, 7, 8], Sampling(5))

    generation, told = asyncio.run(ask()), parsed(data)["meta_info"]
    pairs = zip(generation.logprobs, generation.token_ids, strict=True)
    assert list(map(list, pairs)) == [pair[:2] for pair in told.get("output_token_logprobs") or []]
    assert all(type(token) is int and 0 <= token < 100 for token in generation.token_ids)
    assert all(type(p) is not bool and math.isfinite(p) and p < 0.01 for p in generation.logprobs)
    assert generation.finish_reason == told["finish_reason"]["type"] in ("stop", "length", "abort")


# The Open Reward Standard

TEXT = [{"type": "text", "text": "What is 2 + 3?", "detail": None}]
SPEC = {"game_id": "a", "prompt": "b", "game_state": {"x": 1}}
ENVIRONMENT = {
    "/list_environments": ["sums"],
    "/sums/splits": [{"name": "train", "type": "train"}, {"name": "test", "type": "test"}],
    "/sums/tasks": {"tasks": [SPEC, {**SPEC, "game_id": "c"}], "env_name": "sums"},
    "/sums/task_tools": {
        "tools": [{"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}],
        "terminal_tool": {"name": "answer", "arg": "text"},
    },
    "/sums/messages": [{"role": "system", "blocks": TEXT}, {"role": "user", "blocks": TEXT}],
    "/sums/call": {"ok": True, "output": {"blocks": TEXT, "metadata": None, "reward": 0.5, "finished": True}},
    "/create_session": {"sid": "s"},
}  # fmt: skip


def ors(data: bytes) -> None:
    """An episode is what the server's answers say: task, prompt, tools, result and reward."""
    from slim_rl.games import game_parameters, load_games

    try:
        told = {**ENVIRONMENT, **parsed(data)}
        bodies = {path: json.dumps(answer).encode() for path, answer in told.items()}
    except (ValueError, RecursionError, TypeError):
        told, bodies = {}, {path: data for path in ENVIRONMENT}
    server().answers = {
        path: (200, "application/json", b"{}") for path in ("/create", "/delete", "/delete_session", "/ping")
    }
    for path, body in bodies.items():
        if path in ("/sums/call", "/create_session"):
            frames = b"event: task_id\ndata: s\n\nevent: end\ndata: " + body + b"\n\n"
            server().answers[path] = (200, "text/event-stream", frames)
        else:
            server().answers[path] = (200, "application/json", body)
    name = f"openreward:{server().url}"
    game = load_games({name: game_parameters(name, {"nonterminal_reward": 0.0})}, 0)[name]
    tasks = list(game.taskset.tasks("train", 2))
    game.taskset.check(tasks[0])

    async def play() -> Any:
        played: Any = game.taskset.load(tasks[0])
        try:
            read = await played.observe("solver")
            tools = played.tools("solver")
            await played.step(Message("assistant", "", (ToolCall(tools[0].name if tools else "add", {}),)))
            return read, tools, played.rewards(), played.turn
        finally:
            await played.close()

    read, tools, rewards, turn = asyncio.run(play())

    def text(blocks: Any) -> str:
        return "".join(block["text"] if block["type"] == "text" else "[image]" for block in blocks)

    specs = [strictly(spec) for spec in told["/sums/tasks"]["tasks"]]
    assert all(strictly(task.state["task_spec"]) in specs for task in tasks)
    assert [(m.role, m.text) for m in read] == [(m["role"], text(m["blocks"])) for m in told["/sums/messages"]]
    own = told["/sums/task_tools"]["tools"]
    assert [(t.name, t.description) for t in tools] == [(t["name"], t["description"]) for t in own]
    assert all(isinstance(text, str) for t in tools for text in (t.name, t.description))
    assert all(isinstance(t.parameters, dict) for t in tools)
    if tools and told["/sums/call"]["ok"] is True:
        output = told["/sums/call"]["output"]
        assert (turn is None) == (output["finished"] is True)
        reward = output.get("reward")
        assert rewards == (None if reward is None and output["finished"] else {"solver": reward or 0.0})


# Games files

GAMES: dict[str, dict[str, Any]] = {
    "matching": {}, "kuhn": {"seating": ["policy", "policy"]}, "tictactoe": {"seating": ["policy", "policy"]},
    "textarena:Nim-v0": {"seating": ["policy", "policy"]}, "calculator": {}, "execution": {}, "prediction": {},
}  # fmt: skip


@cache
def game_of(name: str) -> Any:
    from slim_rl.games import game_parameters, load_games

    return load_games({name: game_parameters(name, GAMES[name])}, 0)[name]


def line_of(name: str) -> Any:
    [task] = game_of(name).taskset.tasks("train", 1)
    plain = {name: getattr(task, name) for name in ("game_id", "prompt", "ground_truth")}
    return {**plain, "game_state": dict(task.state)}


def games(name: str, data: bytes) -> None:
    """The task is that of the line, and can be played."""
    from slim_rl.rollout.tasks import TaskFile

    with folder() as here:
        path = here / "games.jsonl"
        path.write_bytes(data + b"\n")
        tasks = TaskFile(path, game_of(name))
        [task] = tasks
        told = next(json.loads(line) for line in data.decode("utf-8-sig").splitlines() if line.strip())
        state = told["game_state"]
        state = json.loads(state) if isinstance(state, str) else state
        assert [task.game_id, task.prompt] == [told["game_id"], told.get("prompt") or ""]
        assert strictly(dict(task.state)) == strictly({k: v for k, v in state.items() if v is not None})
    played = game_of(name).load(task)
    if name == "matching" and "table" in task.state:
        assert all(task.state[key] == value for key, value in played.board.to_game_state().items())
        assert not any(isinstance(score, bool) for row in task.state["table"] for score in row)

    async def play() -> None:
        for _ in range(4):
            if (seat := played.turn) is None:
                break
            for message in await played.observe(seat):
                message.text.encode()
            if name not in ("execution", "prediction"):
                await played.step(Message("assistant", "[0]"))
        json.dumps(played.metrics())

    asyncio.run(play())


def strictly(value: Any) -> str:
    """JSON in which true is not 1, and 1.0 not 1."""
    return json.dumps(value, sort_keys=True)


# Checkpoints

TOKENIZER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
OTHER_FILES = ("generation_config.json", "model.safetensors.index.json")


@cache
def checkpoint() -> Path:
    from transformers import AutoModelForCausalLM

    from tests.checkpoints import chat_checkpoint

    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    whole = chat_checkpoint(place / "whole", "qwen2.5")
    AutoModelForCausalLM.from_pretrained(whole).save_pretrained(place / "shards", max_shard_size="60kB")
    for file in (place / "shards").glob("model*"):
        shutil.move(file, whole / file.name)
    (whole / "model.safetensors").unlink()
    return whole


def read(file: str) -> Any:
    return json.loads((checkpoint() / file).read_text())


@cache
def reference() -> Any:
    return _used(checkpoint())


def checkpoints(file: str, data: bytes) -> None:
    """The model has numbers, knows every token of its tokenizer, and both can be saved and read again."""
    import torch

    from slim_rl.engines.model import load_model
    from slim_rl.training.checkpoint import save_model

    with folder() as here:
        (here / "mine").mkdir()
        for path in checkpoint().iterdir():
            (here / "mine" / path.name).symlink_to(path)
        (here / "mine" / file).unlink()
        (here / "mine" / file).write_bytes(data)
        model, tokenizer, opening, logits = _used(here / "mine")
        assert max(opening) < model.get_input_embeddings().weight.shape[0] and logits.isfinite().all()
        assert len(tokenizer) <= model.get_input_embeddings().weight.shape[0]
        own, _, known, numbers = reference()
        assert all(torch.equal(a, b) for a, b in zip(own.parameters(), model.parameters(), strict=True))
        if file in OTHER_FILES:
            assert opening == known and torch.equal(logits, numbers)
        save_model(here / "saved", model, tokenizer)
        again, same = load_model(here / "saved")
        assert _opening(same) == opening and _opening(tokenizer) == opening
        assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


def _used(place: Path) -> Any:
    """As stages do: the checks before a run, the opening of a dialogue, and what the model makes of it."""
    import torch

    from slim_rl.config import Config
    from slim_rl.engines.model import load_model
    from stages.ready import check_checkpoints

    elsewhere = {"backend": "slime"}  # without the trial of this machine's memory and precision
    parameters = {"games": {"calculator": {}}, "model": {"base": str(place)}, "train": elsewhere}
    check_checkpoints(Config.model_validate(parameters), [str(place)])
    model, tokenizer = load_model(place)
    opening = _opening(tokenizer)
    with torch.no_grad():
        logits = model(torch.tensor([opening])).logits
    return model, tokenizer, opening, logits


def _opening(tokenizer: Any) -> list[int]:
    from slim_rl.core.message import heard
    from slim_rl.players.config import ModelConfig
    from slim_rl.players.renderer import renderer_of

    return renderer_of(ModelConfig(), tokenizer).opening(heard("Hello there, 1 2 3."))


# params.yaml


@cache
def parameters() -> Any:
    """The default experiment with a part of each kind."""
    from slim_rl.config import composed

    values = composed(path=ROOT / "params.yaml") if Path.cwd() == ROOT else {}
    more = {
        "services": {"partner": {"model": "m", "price": {"prompt": 1.0, "cached_prompt": 1.0, "completion": 2.0}}},
        "evaluate": {"every_steps": 1, "benchmarks": {"b": {"game": "kuhn", "parameters": {"seating": ["policy", "policy"]}}}},
        "slime": {"arguments": ["--a", "b"]}, "model": {"base": "tiny", "thinking": False, "system_prompt": None},
    }  # fmt: skip
    return merged(values, more)


def params(data: bytes) -> None:
    """Every parameter is the one that was written; what depends on them can be listed."""
    from slim_rl.config import load_config
    from stages.dependencies import SECTIONS, values

    with folder() as here:
        (here / "params.yaml").write_bytes(data)
        config = load_config(here / "params.yaml")
    for stage in SECTIONS:
        json.dumps(values(stage, config), default=str)
    written, dumped = yaml.safe_load(data), config.model_dump(mode="json")
    written.pop("profile", None)
    _same(written, dumped, "")


def _same(written: Any, dumped: Any, name: str) -> None:
    if isinstance(dumped, dict):
        for key, value in (written or {}).items():
            _same(value, dumped[str(key)], f"{name}.{key}")
    elif isinstance(dumped, list):
        for one, other in zip(written, dumped, strict=True):
            _same(one, other, name)
    elif written is None or isinstance(written, bool):
        assert written is dumped, (name, written, dumped)
    elif isinstance(dumped, bool):
        assert str(written).lower() in (
            ("1", "1.0", "true", "yes", "on", "t", "y") if dumped else ("0", "0.0", "false", "no", "off", "f", "n")
        )
    elif isinstance(dumped, int | float):
        assert written == dumped or float(written) == dumped, (name, written, dumped)
    else:
        assert str(written) == str(dumped), (name, written, dumped)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=MEMORY) as here:
        yield Path(here)


def targets() -> dict[str, tuple[Callable[[], Any], Callable[[bytes], None]]]:
    """By name: what is mutated, and what reads it and knows what it means."""
    return {
        "chat": (lambda: COMPLETION, chat),
        "chat refusals": (lambda: REFUSAL, refusals),
        "sglang": (lambda: GENERATION, sglang),
        "ors": (lambda: ENVIRONMENT, ors),
        **{f"games {name}": (partial(line_of, name), partial(games, name)) for name in GAMES},
        **{f"checkpoint {f}": (partial(read, f), partial(checkpoints, f)) for f in (*TOKENIZER_FILES, *OTHER_FILES)},
        "params": (parameters, params),
    }


class Result(NamedTuple):
    read: int
    refused: int
    failures: dict[str, tuple[str, bytes]]
    """By the line, what fell there, and the shortest input."""


def fuzz(name: str, examples: int) -> Result:
    """Try so many mutations, always the same ones."""
    make, read = targets()[name]
    whole, dump = make(), yaml.safe_dump if name == "params" else json.dumps
    read(dump(whole).encode())
    counts: Counter[bool] = Counter()
    failures: dict[str, tuple[str, bytes]] = {}

    def one(data: bytes) -> None:
        try:
            try:
                read(data)
                counts[True] += 1
            except (UserError, EpisodeFailed) as error:
                counts[False] += 1
                text = str(error) or str(error.__cause__)
                assert text and "\n" not in text and len(text) < 1500, f"no sentence: {text}"
        except Exception as error:
            place = next(f for f in reversed(traceback.extract_tb(error.__traceback__)) if str(ROOT) in f.filename)
            where = f"{place.filename}:{place.lineno}"
            what, shortest = failures.get(where, (f"{type(error).__name__} {str(error)[:200]}", data))
            failures[where] = what, min(shortest, data, key=len)

    settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(given(mutants(whole, dump))(one))()  # fmt: skip
    one(b"[" * (2000 if name == "params" else 100_000))
    return Result(counts[True], counts[False], failures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(targets()))
    parser.add_argument("--examples", type=int, default=5000)
    options = parser.parse_args()
    failed = False
    for name in options.targets or targets():
        start = time.perf_counter()
        read, refused, failures = fuzz(name, options.examples)
        seconds = time.perf_counter() - start
        print(f"{name}: {read} read, {refused} refused, {len(failures)} fell ({seconds:.0f} s)", flush=True)
        for where, (what, data) in failures.items():
            print(f"    {where}: {what}\n        {data[:1500]!r}")
        failed = failed or bool(failures)
    sys.exit(failed)


if __name__ == "__main__":
    main()
