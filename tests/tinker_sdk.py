"""Stands in for the package `tinker` and its server: a small model with LoRA adapters, in torch.

It has the shapes of two versions: in 0.25 a method that makes a client waits and returns it, and `sample` returns a
future of `concurrent.futures`; in 0.38 everything is awaited.
"""

import copy
import io
import json
import tarfile
import threading
from concurrent.futures import Future
from functools import wraps
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import torch
from safetensors.torch import save as tensors_as_bytes

from slim_rl.training.config import LoraConfig
from slim_rl.training.weights import Weights

ALPHA = 32


class StatusError(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status_code = status


class Awaited:
    """A future as 0.38 returns it, and 0.25 in training."""

    def __init__(self, work):
        self._future, self.awaited = Future(), False
        try:
            self._future.set_result(work())
        except Exception as error:
            self._future.set_exception(error)

    async def _wait(self):
        self.awaited = True
        return self._future.result()

    def __await__(self):
        return self._wait().__await__()


def concurrent(work):
    return Awaited(work)._future


def call(kind):
    """A method of the package. `kind`: client, sampling or training."""

    def decorate(method):
        @wraps(method)
        def called(self, *args, **options):
            server = getattr(self, "server", self)
            work = lambda: server.answer(method.__name__, lambda: method(self, *args, **options))  # noqa: E731
            if server.version == "0.25" and kind != "training":
                return work() if kind == "client" else concurrent(work)
            future = Awaited(work)
            if method.__name__ == "forward_backward":
                server.gradient = future
            return future

        return called

    return decorate


class Server:
    """What `tinker` is replaced with, and the server behind it.

    `failures`: by the name of a call, a function that it runs before it answers. `calls`: the names of all calls.
    """

    def __init__(self, model, version="0.38", loss_scale="sum", shift=0.0):
        self.base, self.version, self.loss_scale, self.shift = copy.deepcopy(model), version, loss_scale, shift
        self.failures, self.calls, self.states, self.samplers, self.gradients = {}, [], {}, {}, []
        self.start = None
        """The adapters' first weights, where they are not those of PEFT."""

    def answer(self, name, work):
        self.calls.append(name)
        self.failures.get(name, lambda: None)()
        return work()

    # The package

    class ModelInput:
        from_ints = staticmethod(list)

    class SamplingParams(SimpleNamespace): ...

    class AdamParams(SimpleNamespace): ...

    class Datum(SimpleNamespace): ...

    def ServiceClient(self, api_key, base_url=None):
        self.api_key = api_key
        return self.answer("ServiceClient", lambda: Service(self))

    def logprobs(self, model, tokens):
        """Log-probs of all tokens but the first."""
        logits = model(torch.tensor([tokens])).logits[0, :-1].float()
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


class Service:
    def __init__(self, server):
        self.server = server

    def get_server_capabilities(self):
        return self.server.answer(
            "get_server_capabilities",
            lambda: SimpleNamespace(supported_models=[SimpleNamespace(model_name="Tiny/Qwen3")]),
        )

    @call("client")
    def create_lora_training_client(self, base_model, rank, seed, train_unembed):
        assert base_model == "Tiny/Qwen3" and not train_unembed and 0 <= seed < 2**31
        self.server.seed = seed
        return (Training if self.server.version == "0.25" else NewTraining)(self.server, rank, seed)

    @call("client")
    def create_sampling_client(self, model_path=None, base_model=None):
        return Sampler(self.server, self.server.samplers[model_path][0] if model_path else self.server.base)

    def create_rest_client(self):
        return Rest(self.server)


class Training:
    def __init__(self, server, rank, seed):
        self.server, self.rank, self.name = server, rank, f"tinker://run-{len(server.calls)}"
        self.weights = Weights(copy.deepcopy(server.base), lora=LoraConfig(rank=rank, alpha=ALPHA), seed=seed)
        if server.start:
            self.weights.load(server.start)
        self.optimizer = torch.optim.AdamW(self.weights.trained.values())

    @call("training")
    def load_state_with_optimizer(self, path):
        weights, optimizer = self.server.states[path]
        self.weights.load(weights)
        self.optimizer.load_state_dict(copy.deepcopy(optimizer))

    @call("training")
    def save_state(self, name, ttl_seconds):
        path = f"{self.name}/weights/{name}"
        assert path not in self.server.states and ttl_seconds >= 3600
        weights = {n: w.clone() for n, w in self.weights.state().items()}
        self.server.states[path] = weights, copy.deepcopy(self.optimizer.state_dict())
        return SimpleNamespace(path=path)

    @call("training")
    def save_weights_for_sampler(self, name, ttl_seconds):
        kind = "sampler_weights/" * (self.server.version != "0.25")  # SkyRL, for which 0.25 is used, leaves it out
        path = f"{self.name}/{kind}{name}"
        assert path not in self.server.samplers and ttl_seconds >= 3600
        adapters = {n: w.clone() for n, w in self.weights.state().items()}
        self.server.samplers[path] = copy.deepcopy(self.weights.sampler), adapters, self.rank
        return SimpleNamespace(path=path)

    @call("training")
    def forward_backward(self, data, loss_fn, loss_fn_config):
        assert loss_fn == "ppo" and len({id(datum) for datum in data}) == len(data)
        low, high = loss_fn_config["clip_low_threshold"], loss_fn_config["clip_high_threshold"]
        outputs = []
        for datum in data:
            given = {name: torch.tensor(values) for name, values in datum.loss_fn_inputs.items()}
            assert all(len(values) == len(datum.model_input) for values in given.values())
            assert datum.model_input[1:] == given["target_tokens"].tolist()[:-1]
            tokens = [*datum.model_input, int(given["target_tokens"][-1])]
            new = self.server.logprobs(self.weights.model, tokens)
            ratio = (new - given["logprobs"]).exp()
            gains = given["advantages"]
            losses = -torch.minimum(ratio * gains, ratio.clamp(low, high) * gains)
            if self.server.loss_scale == "mean":
                losses = losses * given["weights"] / given["weights"].sum() / len(data)
            else:
                assert "weights" not in given
            losses.sum().backward()
            outputs.append({"logprobs": new.detach() + self.server.shift})
        return SimpleNamespace(loss_fn_outputs=outputs)

    @call("training")
    def optim_step(self, adam):
        assert self.server.gradient.awaited, "SkyRL takes requests of different kinds in any order"
        weights = self.weights.trained
        self.server.gradients.append({n: w.grad.clone() for n, w in weights.items()})
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), adam.grad_clip_norm)
        for group in self.optimizer.param_groups:
            group |= {"lr": adam.learning_rate, "betas": (adam.beta1, adam.beta2), "eps": adam.eps}
            group["weight_decay"] = adam.weight_decay
        self.optimizer.step()
        self.weights.zero_grad()
        self.weights.follow()
        return SimpleNamespace(metrics={"server/grad_norm": float(norm)})


class Sampler:
    def __init__(self, server, model):
        self.server, self.model = server, model

    @call("sampling")
    @torch.no_grad()
    def sample(self, prompt, num_samples, parameters):
        assert num_samples == 1 and 0 <= parameters.seed < 2**31 and parameters.temperature == 1
        drawn = torch.Generator().manual_seed(parameters.seed)
        tokens, logprobs, reason = [], [], "length"
        while len(tokens) < parameters.max_tokens and reason == "length":
            row = torch.log_softmax(self.model(torch.tensor([prompt + tokens])).logits[0, -1].float(), -1)
            tokens.append(int(torch.multinomial(row.exp(), 1, generator=drawn)))
            logprobs.append(float(row[tokens[-1]]))
            reason = "stop" if tokens[-1] in parameters.stop else "length"
        sequence = SimpleNamespace(tokens=tokens, logprobs=logprobs, stop_reason=reason)
        return SimpleNamespace(sequences=[sequence], prompt_cache_hit_tokens=0)

    @call("sampling")
    @torch.no_grad()
    def compute_logprobs(self, prompt):
        return [None, *self.server.logprobs(self.model, prompt).tolist()]


class NewTraining(Training):
    @call("training")
    def save_weights_external(self, name, ttl_seconds):
        path = f"{self.name}/external_weights/{name}"
        self.server.samplers[path] = self.weights.sampler, self.weights.state(), self.rank
        return SimpleNamespace(path=path)


class Rest:
    """Its addresses are served over HTTP."""

    def __init__(self, server):
        self.server = server

    @call("sampling")
    def get_external_weights_urls(self, path):
        return SimpleNamespace(urls=served(self.files(path)))

    @call("sampling")
    def get_checkpoint_archive_url(self, training_run_id, checkpoint_id):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, content in self.files(f"tinker://{training_run_id}/{checkpoint_id}").items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return SimpleNamespace(url=served({"archive": packed.getvalue()})["archive"])

    def files(self, path):
        _, adapters, rank = self.server.samplers[path]
        names = {n: f"base_model.model.{n.replace('.default', '')}" for n in adapters}
        return {
            "adapter_config.json": json.dumps({"r": rank, "lora_alpha": ALPHA, "peft_type": "LORA"}).encode(),
            "adapter_model.safetensors": tensors_as_bytes({names[n]: w.contiguous() for n, w in adapters.items()}),
        }


def served(files):
    """The address of each file."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(files[self.path.removeprefix("/")])

        def log_message(self, *args): ...

    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    return {name: f"http://127.0.0.1:{http.server_port}/{name}" for name in files}
