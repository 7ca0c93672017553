"""The local engine behind the part of SGLang's HTTP interface that SLIME, sglang-router and our client use.

It stands in for SGLang, so that the rollout side of SLIME and `evaluate.server` run without a GPU. It samples from the
whole distribution, looks for no stop strings, and neither streams nor reads weights. Where tokens are forbidden, its
log-probs count them in, and SGLang's do not.
"""

import uuid
from typing import Any

import torch
from aiohttp import web

from slim_rl.engines.engine import Engine, EngineFailed, Generation, Sampling
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import load_model
from slim_rl.runtime.cli import argument_parser

WHOLE_DISTRIBUTION = {"top_p": 1, "top_k": -1, "min_p": 0, "min_new_tokens": 0, "n": 1}
"""Sampling parameters that are accepted with this value alone."""


class Server:
    """Answers SGLang's requests from `engine`; status 400 where it fails."""

    def __init__(self, engine: Engine, eos_token_id: int, model_path: str):
        self.engine, self._eos_token_id, self._model_path = engine, eos_token_id, model_path
        self._running = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/abort_request", self.abort_request)
        app.router.add_get("/v1/loads", self.loads)
        app.router.add_get("/health_generate", self.health_generate)
        app.router.add_get("/workers", self.workers)
        for path in ("/health", "/server_info", "/get_server_info", "/model_info", "/get_model_info", "/v1/models"):
            app.router.add_get(path, self.about)
        return app

    async def generate(self, request: web.Request) -> web.Response:
        asked = await request.json()
        ids, params = asked["input_ids"], asked["sampling_params"]
        for name, value in WHOLE_DISTRIBUTION.items():
            if params.get(name, value) != value:
                return web.Response(status=400, text=f"{name} is {params[name]}, but only {value} is supported")
        rid = asked.get("rid") or uuid.uuid4().hex
        sampling = Sampling(
            max_new_tokens=min(params["max_new_tokens"], self.engine.max_context_tokens - len(ids)),
            temperature=params["temperature"],
            stop_token_ids=(*params["stop_token_ids"], self._eos_token_id),
            seed=params["sampling_seed"],
            forbidden_token_ids=tuple(map(int, params.get("logit_bias", ()))),
            session=rid,
        )
        self._running += 1
        try:
            generation = await self.engine.generate(ids, sampling)
        except EngineFailed as error:
            return web.Response(status=400, text=str(error))
        finally:
            self._running -= 1
            self.engine.release(rid)
        return web.json_response({"text": "", "output_ids": generation.token_ids, "meta_info": meta_info(generation)})

    async def abort_request(self, request: web.Request) -> web.Response:
        """Lets every request end by itself."""
        return web.Response()

    async def loads(self, request: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_running_reqs": self._running}]})

    async def workers(self, request: web.Request) -> web.Response:
        """As a router without engines that SLIME could interrupt."""
        return web.json_response({"workers": []})

    async def health_generate(self, request: web.Request) -> web.Response:
        await self.engine.generate([0], Sampling(1))
        return web.Response()

    async def about(self, request: web.Request) -> web.Response:
        sizes = {name: 1 for name in ("tp_size", "dp_size", "pp_size", "ep_size")}
        model = {"model_path": self._model_path, "served_model_name": self._model_path, "is_generation": True}
        context = {"context_length": self.engine.max_context_tokens}
        return web.json_response({**model, **sizes, **context, "data": [{"id": self._model_path}], "status": "ready"})


def meta_info(generation: Generation) -> dict[str, Any]:
    finish = {"stop": {"matched": generation.token_ids[-1:]}, "length": {"length": len(generation.token_ids)}}
    reason = generation.finish_reason
    sampled = zip(generation.logprobs, generation.token_ids, strict=True)
    return {
        "finish_reason": {"type": reason, **finish.get(reason, {})},
        "output_token_logprobs": [[logprob, token, None] for logprob, token in sampled],
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load_model(given.model)

    async def app() -> web.Application:
        return Server(LocalEngine(model), tokenizer.eos_token_id, given.model).app()

    web.run_app(app(), host="127.0.0.1", port=given.port, access_log=None)


if __name__ == "__main__":
    main()
