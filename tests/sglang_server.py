"""The local engine behind SGLang's HTTP interface: the part that SLIME and sglang-router use.

It stands in for SGLang: with it, the rollout side of SLIME and `evaluate.server` run without a GPU. The interface follows SGLang's `http_server.py`, `io_struct.py`
and `sampling_params.py`. The server samples from the whole distribution, so it refuses `top_p`, `top_k` and penalties,
and it does not stream. It looks for stop strings once a continuation is complete, and drops the tokens after the first.
"""

import asyncio
import logging
import random
import time
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from transformers import PreTrainedTokenizerBase

from slim_rl.core.errors import UserError
from slim_rl.engines.engine import Generation, Sampling
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import load_model
from slim_rl.runtime.cli import argument_parser

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 * 2**20


def _default_for_none(default: Any) -> BeforeValidator:
    return BeforeValidator(lambda value: default if value is None else value)


def _listed(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, str) else value


class SamplingParams(BaseModel):
    """Those of SGLang's parameters that are supported. null means the default, as in SGLang."""

    model_config = ConfigDict(extra="forbid")

    max_new_tokens: Annotated[int, Field(ge=1), _default_for_none(128)] = 128
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False), _default_for_none(1.0)] = 1.0
    stop: Annotated[list[str], BeforeValidator(_listed)] = []
    stop_token_ids: Annotated[list[int], _default_for_none([])] = []
    n: Annotated[int, Field(ge=1), _default_for_none(1)] = 1
    sampling_seed: int | None = Field(default=None, ge=0)
    logit_bias: dict[int, Literal[-100]] | None = None
    """Only to forbid tokens."""
    no_stop_trim: Annotated[bool, _default_for_none(False)] = False
    ignore_eos: Annotated[bool, _default_for_none(False)] = False
    skip_special_tokens: Annotated[bool, _default_for_none(True)] = True
    spaces_between_special_tokens: Annotated[bool, _default_for_none(True)] = True
    # Parameters that change the distribution are accepted only with the value that does not.
    top_p: Annotated[Literal[1], _default_for_none(1)] = 1
    top_k: Annotated[Literal[-1, 1073741824], _default_for_none(-1)] = -1
    min_p: Annotated[Literal[0], _default_for_none(0)] = 0
    min_new_tokens: Annotated[Literal[0], _default_for_none(0)] = 0
    frequency_penalty: Annotated[Literal[0], _default_for_none(0)] = 0
    presence_penalty: Annotated[Literal[0], _default_for_none(0)] = 0
    repetition_penalty: Annotated[Literal[1], _default_for_none(1)] = 1


class GenerateRequest(BaseModel):
    """The body of `/generate`. Other fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    input_ids: list[int] = Field(min_length=1)
    sampling_params: Annotated[SamplingParams, _default_for_none({})] = SamplingParams()
    return_logprob: bool = False
    stream: Literal[False] = False
    rid: str | None = None


class Server:
    """Answers SGLang's requests from `engine`."""

    def __init__(self, engine: LocalEngine, tokenizer: PreTrainedTokenizerBase, model_path: str):
        self.engine = engine
        self.tokenizer = tokenizer
        self.model_path = model_path
        self.weight_version = "default"
        self._requests = 0
        self._idle = asyncio.Condition()
        self._updating = asyncio.Lock()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=[_bad_requests_in_a_sentence])
        app.add_routes(
            [
                web.post("/generate", self.generate),
                web.get("/health", self.health),
                web.get("/health_generate", self.health_generate),
                web.get("/server_info", self.server_info),
                web.get("/get_server_info", self.server_info),
                web.get("/model_info", self.model_info),
                web.get("/get_model_info", self.model_info),
                web.get("/v1/models", self.models),
                web.get("/v1/loads", self.loads),
                web.post("/abort_request", self.abort_request),
                web.get("/flush_cache", self.flush_cache),
                web.post("/flush_cache", self.flush_cache),
                web.post("/update_weights_from_disk", self.update_weights_from_disk),
            ]
        )
        return app

    async def generate(self, request: web.Request) -> web.Response:
        asked = GenerateRequest.model_validate(await _body(request))
        params = asked.sampling_params
        room = self.engine.max_context_tokens - len(asked.input_ids)
        if room < 1:
            raise ValueError(
                f"input_ids has {len(asked.input_ids)} tokens, but the model's context of "
                f"{self.engine.max_context_tokens} must hold them and at least one more"
            )
        vocabulary = self.engine.model.config.vocab_size
        if not all(0 <= token < vocabulary for token in asked.input_ids):
            raise ValueError(f"input_ids holds a token outside of the vocabulary (0 to {vocabulary - 1})")
        stops = set(params.stop_token_ids)
        if self.tokenizer.eos_token_id is not None and not params.ignore_eos:
            stops.add(self.tokenizer.eos_token_id)
        seed = random.getrandbits(62) if params.sampling_seed is None else params.sampling_seed
        forbidden = tuple(params.logit_bias or ())
        if not all(0 <= token < vocabulary for token in forbidden):
            raise ValueError(f"logit_bias names a token outside of the vocabulary (0 to {vocabulary - 1})")
        rid = asked.rid or uuid.uuid4().hex
        started = time.monotonic()
        samplings = [
            Sampling(min(params.max_new_tokens, room), params.temperature, tuple(stops), seed + i, forbidden, rid)
            for i in range(params.n)
        ]
        async with self._updating:  # no sampling while weights are being read
            self._requests += params.n
        try:
            sampled = await asyncio.gather(*(self.engine.generate(asked.input_ids, s) for s in samplings))
        finally:
            self.engine.release(rid)
            self._requests -= params.n
            async with self._idle:
                self._idle.notify_all()
        answers = [self._answer(asked, rid, generation) for generation in sampled]
        for answer in answers:
            answer["meta_info"]["e2e_latency"] = time.monotonic() - started
        return web.json_response(answers if params.n > 1 else answers[0])

    def _answer(self, asked: GenerateRequest, rid: str, generation: Generation) -> dict[str, Any]:
        params = asked.sampling_params
        ids, finish = generation.token_ids, self._finish(generation)
        text = self._text(ids, params)
        if cut := self._first_stop(ids, params):
            matched, count = cut
            ids, finish = ids[:count], {"type": "stop", "matched": matched}
            text = self._text(ids, params)
        trimmed = ids
        if finish["type"] == "stop" and not params.no_stop_trim:
            if isinstance(finish["matched"], str):
                text = text[: text.find(finish["matched"])]
            else:
                trimmed = ids[:-1]
                text = self._text(trimmed, params)
        meta = {
            "id": rid,
            "finish_reason": finish,
            "prompt_tokens": len(asked.input_ids),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "weight_version": self.weight_version,
        }
        if asked.return_logprob:
            logprobs = generation.logprobs[: len(ids)]
            meta["output_token_logprobs"] = [[p, token, None] for p, token in zip(logprobs, ids, strict=True)]
        return {"text": text, "output_ids": trimmed, "meta_info": meta}

    def _text(self, ids: list[int], params: SamplingParams) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens))

    def _finish(self, generation: Generation) -> dict[str, Any]:
        match generation.finish_reason:
            case "stop":
                return {"type": "stop", "matched": generation.token_ids[-1]}
            case "length":
                return {"type": "length", "length": len(generation.token_ids)}
            case _:
                return {"type": "abort", "message": "Aborted by /abort_request."}

    def _first_stop(self, ids: list[int], params: SamplingParams) -> tuple[str, int] | None:
        """The first stop string, and the number of tokens up to its end; None without one."""
        text = self._text(ids, params)
        if not any(stop in text for stop in params.stop):
            return None
        for count in range(1, len(ids) + 1):
            text = self._text(ids[:count], params)
            for stop in params.stop:
                if stop in text:
                    return stop, count
        return None

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def health_generate(self, request: web.Request) -> web.Response:
        await self.engine.generate([0], Sampling(1))
        return web.Response()

    async def server_info(self, request: web.Request) -> web.Response:
        sizes = {name: 1 for name in ("tp_size", "dp_size", "pp_size", "ep_size")}
        return web.json_response({**self._model(), **sizes, "version": "slim_rl", "status": "ready"})

    async def model_info(self, request: web.Request) -> web.Response:
        return web.json_response(self._model())

    def _model(self) -> dict[str, Any]:
        return {
            "model_path": self.model_path,
            "tokenizer_path": self.model_path,
            "served_model_name": self.model_path,
            "is_generation": True,
            "context_length": self.engine.max_context_tokens,
            "weight_version": self.weight_version,
        }

    async def models(self, request: web.Request) -> web.Response:
        card = {"id": self.model_path, "object": "model", "owned_by": "slim_rl", "root": self.model_path}
        return web.json_response({"object": "list", "data": [card]})

    async def loads(self, request: web.Request) -> web.Response:
        load = {
            "dp_rank": 0,
            "num_running_reqs": self._requests,
            "num_waiting_reqs": 0,
            "num_total_reqs": self._requests,
        }
        return web.json_response({"dp_rank_count": 1, "loads": [load], "aggregate": load})

    async def abort_request(self, request: web.Request) -> web.Response:
        body = await _body(request)
        if body.get("abort_all"):
            self.engine.abort()
        elif body.get("rid"):
            self.engine.abort(body["rid"])
        else:
            raise ValueError("rid or abort_all must say which requests to abort")
        return web.Response()

    async def flush_cache(self, request: web.Request) -> web.Response:
        if self._requests:
            raise ValueError(f"the cache is in use by {self._requests} requests")
        self.engine.reset()
        return web.Response(text="Cache flushed.\n")

    async def update_weights_from_disk(self, request: web.Request) -> web.Response:
        """Wait for the running requests (or abort them), then read the weights. New requests wait."""
        body = await _body(request)
        if not isinstance(path := body.get("model_path"), str):
            raise ValueError("model_path must name a checkpoint folder")
        if body.get("abort_all_requests"):
            self.engine.abort()
        async with self._updating:
            async with self._idle:
                await self._idle.wait_for(lambda: not self._requests)
            try:
                await asyncio.to_thread(self._read_weights, Path(path))
            except (UserError, RuntimeError) as error:  # torch: other names or shapes
                message = str(error).splitlines()[0]
                return web.json_response({"success": False, "message": message}, status=400)
            self.engine.reset()
            self.model_path = path
            self.weight_version = str(body.get("weight_version") or self.weight_version)
        return web.json_response({"success": True, "message": "Succeeded to update model weights."})

    def _read_weights(self, path: Path) -> None:
        model, _ = load_model(path)
        theirs, ours = model.state_dict(), self.engine.model.state_dict()
        if {n: w.shape for n, w in theirs.items()} != {n: w.shape for n, w in ours.items()}:
            raise UserError(f"{path} has another architecture than {self.model_path}.")
        self.engine.model.load_state_dict(theirs)


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        raise ValueError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    return body


@web.middleware
async def _bad_requests_in_a_sentence(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        sentence = f"{name} is {str(first['input'])[:80]}: {first['msg']}"
    except ValueError as error:
        sentence = str(error)
    return web.json_response({"error": {"message": f"{request.path}: {sentence}.", "code": 400}}, status=400)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load_model(given.model)

    async def app() -> web.Application:
        return Server(LocalEngine(model), tokenizer, given.model).app()

    web.run_app(app(), host="127.0.0.1", port=given.port, access_log=None)


if __name__ == "__main__":
    main()
