"""LoRA training on a server that speaks the Tinker API, through the package `tinker`; see docs/tinker.md.

A trained sequence becomes one Datum: the tokens without the last are the input, those without the first the targets, and
advantages and log-probs are 0 on context. The weight of a token is multiplied into its advantage, because the server sums
the loss of all tokens. All interfaces were read in the source of tinker 0.25.0 and 0.38.0.
"""

import asyncio
import inspect
import math
import os
import re
import tarfile
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from slim_rl.core.episode import TokenTrace
from slim_rl.core.errors import Diverged, UserError, finite
from slim_rl.engines.engine import EngineFailed, Generation, Sampling
from slim_rl.players.ledger import Ledger
from slim_rl.runtime.keys import read_key
from slim_rl.runtime.together import together
from slim_rl.training.checkpoint import copy_checkpoint, merge_adapter
from slim_rl.training.config import TinkerConfig, TrainConfig
from slim_rl.training.loss import is_clipped, kl_estimate, policy_loss, token_weights
from slim_rl.training.update import TrainedSequence, logprob_gaps

KEY_VARIABLE = "TINKER_API_KEY"
_OWN_SERVER_KEY = "tml-none"
"""The package wants a key that begins like this, also for a server that needs none."""
_DAY_SECONDS = 24 * 3600
_STATE_SECONDS, _SAMPLER_SECONDS = 7 * _DAY_SECONDS, _DAY_SECONDS
"""How long the service keeps what a training resumes from, and the weights of a step. It charges for storage."""
_CHECK_SECONDS = 60.0
_SEEDS = 2**31 - 1
"""The largest seed; SkyRL draws its own from these."""
_GOES_ON = "The same command goes on from the last state"
_ADAM = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
"""As `LocalBackend`'s; the package's own eps is 1e-12."""


class _Silence(EngineFailed):
    """A call was not answered, nor any other since an earlier one that was not."""


class TinkerServer:
    """Calls of the package, each with a deadline, and with its errors sorted by whose fault they are.

    The package itself waits up to two hours for an answer, and one hour where the account has no credit.

    Raises:
        UserError: the package or the key is missing.
    """

    def __init__(self, config: TinkerConfig):
        self._config = config
        self._key = read_key(KEY_VARIABLE) or (_OWN_SERVER_KEY if config.base_url else "")
        os.environ.setdefault("TINKER_TELEMETRY", "0")
        try:
            import tinker
        except ImportError:
            raise UserError("train.backend: tinker needs the package tinker: pip install tinker==0.38.0.") from None
        if not config.base_url and os.environ.get("TINKER_BASE_URL"):
            raise UserError(
                "TINKER_BASE_URL is set, which names a server for all programs: set tinker.base_url, or unset it."
            )
        if not self._key:
            raise UserError(f"train.backend: tinker needs a key: set the environment variable {KEY_VARIABLE}.")
        # They name methods that 0.25 does not have.
        warnings.filterwarnings("ignore", "DEPRECATED: ", FutureWarning)
        self.sdk: Any = tinker
        self._answered_at, self._silent_at = -math.inf, math.inf
        self._where = f"The Tinker server at {config.base_url}" if config.base_url else "Tinker"

    async def service(self, seconds: float | None = None) -> Any:
        """A session with the server."""
        address = {"base_url": self._config.base_url} if self._config.base_url else {}
        return await self.call(lambda: self.sdk.ServiceClient(api_key=self._key, **address), seconds)

    async def check(self) -> None:
        """Ask for the models that can be trained, which costs nothing. Raises UserError: the server cannot be used."""
        with stopping("Nothing has been paid"):
            service = await self.service(_CHECK_SECONDS)
            answer = await self.call(lambda: service.get_server_capabilities(), _CHECK_SECONDS)
        names = [str(model.model_name) for model in answer.supported_models]
        if names and self._config.base_model not in names:
            raise UserError(
                f"{self._where} cannot train {self._config.base_model}, but {', '.join(names)}; set tinker.base_model."
            )

    async def call(self, submit: Callable[[], Any], seconds: float | None = None) -> Any:
        """What `submit` returns, or what its futures hold. In a thread, since some calls of 0.25 wait before they return.

        Raises:
            UserError: the key, the credit, the permission or the request is wrong.
            EngineFailed: no answer in time, or another error.
        """
        seconds, began_at = min(seconds or math.inf, self._config.deadline_seconds), time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                answer = await _result(_in_thread(submit))
        except TimeoutError:
            kind = _Silence if self._answered_at < self._silent_at < began_at else EngineFailed
            self._silent_at = time.monotonic()
            raise kind(
                f"{self._where} gave no answer in {seconds:g} s (tinker.deadline_seconds). It is down or crowded, or the "
                "account has no credit, for which the package waits"
            ) from None
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            raise EngineFailed(f"{self._where}: the package cancelled the call") from None
        except Exception as error:  # the package raises many kinds; none says what the user can do
            raise self._sorted(error) from None
        self._answered_at = time.monotonic()
        return answer

    def _sorted(self, error: BaseException) -> Exception:
        chain = [error]
        while earlier := chain[-1].__cause__ or chain[-1].__context__:
            chain.append(earlier)
        # What the server said may be behind a mistake of the package.
        error = next((one for one in chain if hasattr(one, "status_code")), error)
        status = getattr(error, "status_code", None)
        text = " ".join(str(error).replace(self._key, "***").split())[:300]
        reason = f"{self._where}: {type(error).__name__}: {text}"
        advice = {
            401: f"It refuses the key in {KEY_VARIABLE}; set the right one",
            402: "The account has no credit left; add some",
            403: f"The key may not use {self._config.base_model}; take another tinker.base_model or key",
            422: "It does not accept the request; check tinker.base_model, tinker.rank and the version of the package",
        }
        if status in advice:
            return UserError(f"{reason}. {advice[status]} and run the same command again; finished work is kept.")
        return EngineFailed(reason)


class TinkerBackend:
    """Both the engine that episodes are sampled from and the backend that trains.

    Args:
        tinker: with its `base_model` and `seed`.
        base: the checkpoint that the server trains, into which the adapter is merged in the end.
        folder: keeps the adapter that was merged, which outlives the server's.
        ledger: counts tokens and dollars.
    """

    def __init__(
        self,
        config: TrainConfig,
        tinker: TinkerConfig,
        base: Path,
        folder: Path,
        max_context_tokens: int,
        ledger: Ledger,
    ):
        self._config, self._tinker, self._base, self._folder, self.ledger = config, tinker, base, folder, ledger
        self.max_context_tokens = max_context_tokens
        self._server = TinkerServer(tinker)
        self._sdk, self._call = self._server.sdk, self._server.call
        self._service: Any = None
        self._trainer: Any = None
        self._sampler: Any = None
        self._reference: Any = None
        self._state_path = self._sampler_path = ""
        self._published = self._saves = 0

    @property
    def engine(self) -> "TinkerBackend":
        return self

    # The engine

    async def generate(self, input_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Raises EngineFailed, or UserError where the API has no such sampling or the budget is spent."""
        if sampling.temperature != 1 or sampling.forbidden_token_ids:
            raise UserError("train.backend: tinker samples at temperature 1 and cannot forbid tokens.")
        parameters = self._sdk.SamplingParams(
            max_tokens=sampling.max_new_tokens,
            seed=sampling.seed & _SEEDS,
            stop=list(sampling.stop_token_ids),
            temperature=1.0,
        )
        prompt = self._sdk.ModelInput.from_ints(list(input_ids))
        answer = await self._sample(
            len(input_ids), sampling.max_new_tokens, lambda: self._sampler.sample(prompt, 1, parameters)
        )
        try:
            (sequence,) = answer.sequences
            tokens, logprobs = [int(token) for token in sequence.tokens], [finite(p) for p in sequence.logprobs]
            if not tokens or len(tokens) != len(logprobs) or sequence.stop_reason not in ("stop", "length"):
                raise ValueError(f"{len(tokens)} tokens, {len(logprobs)} log-probs, {sequence.stop_reason}")
        except (AttributeError, TypeError, ValueError) as error:
            raise EngineFailed(f"the answer is no continuation: {error}") from None
        return Generation(tokens, logprobs, sequence.stop_reason)

    def release(self, session: str) -> None:
        """No-op: the server has a cache of its own."""

    async def _sample(self, prompt_tokens: int, most_tokens: int, submit: Callable[[], Any]) -> Any:
        """A call that is paid by tokens. It is in the ledger before it is sent, with the most that it can cost."""
        self._afford(self.ledger.most_dollars(prompt_tokens, most_tokens))
        call = self.ledger.begin(prompt_tokens, most_tokens)
        try:
            answer = await self._call(submit)
        except UserError:
            call.free()
            raise
        except EngineFailed as error:
            call.unseen(failed_calls=1)
            if isinstance(error, _Silence):
                raise UserError(f"{error}. {_GOES_ON}.") from None
            raise
        sequences = getattr(answer, "sequences", None)
        sampled = sum(len(sequence.tokens) for sequence in sequences) if sequences else most_tokens
        call.answered(prompt_tokens, getattr(answer, "prompt_cache_hit_tokens", None) or 0, sampled)
        return answer

    def _afford(self, dollars: float) -> None:
        """Raises UserError: so much is not left of the budget."""
        budget, spent = self._tinker.max_cost_dollars, self.ledger.totals["dollars"]
        if budget is not None and spent + dollars > budget:
            raise UserError(
                f"tinker.max_cost_dollars ({budget:g}) is reached: ${spent:.4f} are spent, and the next call may cost "
                f"${dollars:.4f}. Finished work is kept; raise it and run the same command again."
            )

    # The backend

    @property
    def _adapter(self) -> Path:
        """Where the adapter of the last state is kept."""
        return self._folder / f"adapter-{re.sub(r'[^0-9A-Za-z]+', '-', self._state_path)}"

    async def load(self, state: dict[str, Any] | None, ended: bool = False) -> None:
        self._state_path = state["path"] if state else ""
        if ended and self._adapter.is_dir():
            return
        with stopping():
            self._service = await self._server.service()
            settings = {"rank": self._tinker.rank, "seed": (self._tinker.seed or 0) & _SEEDS}
            # Without the head, which many models share with the embeddings.
            self._trainer = await self._call(
                lambda: self._service.create_lora_training_client(
                    self._tinker.base_model, train_unembed=False, **settings
                )
            )
        with stopping("A state is kept for 7 days; without one, `make clean YES=1` lets the training begin anew"):
            if state:
                await self._call(lambda: self._trainer.load_state_with_optimizer(state["path"]))
        with stopping():
            await self._publish()

    async def _publish(self) -> None:
        """Sample from the weights as they are."""
        self._published += 1
        name = f"sampler-{self._published}"
        saved = await self._call(lambda: self._trainer.save_weights_for_sampler(name, ttl_seconds=_SAMPLER_SECONDS))
        self._sampler_path = saved.path
        self._sampler = await self._call(lambda: self._service.create_sampling_client(model_path=saved.path))

    async def update(self, sequences: Sequence[TrainedSequence], learning_rate: float) -> dict[str, float]:
        if not sequences:
            return {}
        count, steps = self._config.minibatches, list[dict[str, float]]()
        self._afford(self._training_dollars(sequences))  # all of it: the part of a step that was taken is not kept
        with stopping():
            for i in range(count):
                if part := [s for s in sequences if s.episode % count == i]:
                    steps.append(await self._follow(part, learning_rate, first=not steps))
            await self._publish()
        names = {name: 1 if name.startswith("logprob_gap") else count for step in steps for name in step}
        return {name: sum(step.get(name, 0.0) for step in steps) / part for name, part in names.items()}

    async def _follow(self, part: Sequence[TrainedSequence], rate: float, first: bool) -> dict[str, float]:
        """One optimiser step."""
        config, traces = self._config, [sequence.trace for sequence in part]
        lengths = [sum(trace.loss_mask) for trace in traces]
        shares = token_weights(torch.tensor(lengths), torch.tensor([s.episode for s in part]), config.average_over)
        weights = shares.repeat_interleave(torch.tensor(lengths))
        old = torch.cat([_sampled(trace.logprobs, trace) for trace in traces])
        gains = torch.cat([torch.tensor(s.advantage).expand(n).float() for s, n in zip(part, lengths, strict=True)])
        pull, reference = torch.zeros(()), None
        if config.kl_coefficient:
            reference = await self._reference_logprobs(traces)
            # The gradient of the estimate, where the policy is the one that sampled.
            slope = old - reference if config.kl_estimator == "k2" else 1 - (reference - old).exp()
            pull = config.kl_coefficient * slope
        means = self._tinker.loss_scale == "mean"
        scales = torch.tensor([float(n * len(part)) if means else 1.0 for n in lengths])
        advantages = (gains - pull) * weights * scales.repeat_interleave(torch.tensor(lengths))
        pieces = advantages.split(lengths)
        data = [self._datum(trace, piece.tolist(), means) for trace, piece in zip(traces, pieces, strict=True)]
        adam = self._sdk.AdamParams(
            learning_rate=rate, weight_decay=config.weight_decay, grad_clip_norm=config.max_grad_norm, **_ADAM
        )
        clip = {"clip_low_threshold": 1 - config.clip_low, "clip_high_threshold": 1 + config.clip_high}
        self._afford(self._training_dollars(part))  # the base model may have been paid in between
        self.ledger.add(calls=1, trained_tokens=_trained_tokens(part), dollars=self._training_dollars(part))
        # One after the other: SkyRL may take a step first that was sent along with its gradient.
        output = await self._call(lambda: self._trainer.forward_backward(data, "ppo", clip))
        new, gaps = self._trained_logprobs(output, traces), dict[str, float]()
        if first:  # later ones differ because the weights have changed
            advice = "The server samples from other weights than it trains, or in another precision."
            gaps = logprob_gaps([(new - old).abs().numpy()], config.max_logprob_gap, advice)
        stepped = await self._call(lambda: self._trainer.optim_step(adam))
        ratios = new, old, gains, config.clip_low, config.clip_high
        losses, measures = policy_loss(*ratios), {"clipped_fraction": is_clipped(*ratios), "entropy": -new}
        if reference is not None:
            measures["kl"] = kl_estimate(new, reference, config.kl_estimator)
            losses = losses + config.kl_coefficient * measures["kl"]
        metrics = {name: float((value * weights).sum()) for name, value in {"loss": losses, **measures}.items()}
        norms = [v for name, v in (getattr(stepped, "metrics", None) or {}).items() if "grad_norm" in name]
        return metrics | ({"grad_norm": float(norms[0])} if norms else {}) | gaps

    def _datum(self, trace: TokenTrace, advantages: Sequence[float], with_mask: bool) -> Any:
        values = iter(advantages)
        inputs = {
            "target_tokens": trace.token_ids[1:],
            "logprobs": trace.logprobs[1:],
            "advantages": [next(values) if sampled else 0.0 for sampled in trace.loss_mask][1:],
        }
        if with_mask:
            inputs["weights"] = [float(sampled) for sampled in trace.loss_mask[1:]]
        prompt = self._sdk.ModelInput.from_ints(trace.token_ids[:-1])
        return self._sdk.Datum(model_input=prompt, loss_fn_inputs=inputs)

    def _training_dollars(self, sequences: Sequence[TrainedSequence]) -> float:
        return _trained_tokens(sequences) * self._tinker.price.train / 1e6 if self._tinker.price else 0.0

    def _trained_logprobs(self, output: Any, traces: Sequence[TokenTrace]) -> torch.Tensor:
        """The log-probs of the sampled tokens before the step. Raises Diverged."""
        try:
            rows = [[0.0, *result["logprobs"].tolist()] for result in output.loss_fn_outputs]
            new = torch.cat([_sampled(row, trace) for row, trace in zip(rows, traces, strict=True)])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise EngineFailed(f"the Tinker server gave no log-prob for each token: {error}") from None
        if not new.isfinite().all():
            raise Diverged("a log-prob of the Tinker server is no finite number")
        return new

    async def _reference_logprobs(self, traces: Sequence[TokenTrace]) -> torch.Tensor:
        """The log-probs of the sampled tokens under the base model."""
        if self._reference is None:
            self._reference = await self._call(
                lambda: self._service.create_sampling_client(base_model=self._tinker.base_model)
            )
        rows: dict[int, torch.Tensor] = {}

        async def read(number: int, trace: TokenTrace) -> None:
            ids = trace.token_ids
            prompt = self._sdk.ModelInput.from_ints(ids)
            values = await self._sample(len(ids), 1, lambda: self._reference.compute_logprobs(prompt))
            try:  # SkyRL leaves out the first token; others give None for it
                rows[number] = _sampled([0.0, *values[len(values) - len(ids) + 1 :]], trace)
            except (TypeError, ValueError) as error:
                raise EngineFailed(f"the Tinker server gave no log-prob for each token: {error}") from None

        await together(read(number, trace) for number, trace in enumerate(traces))
        return torch.cat([rows[number] for number in range(len(traces))])

    async def save(self) -> dict[str, Any]:
        """The path of a state on the server."""
        self._saves += 1
        name = f"state-{self._saves}"
        with stopping():
            saved = await self._call(lambda: self._trainer.save_state(name, ttl_seconds=_STATE_SECONDS))
        self._state_path = saved.path
        return {"path": saved.path}

    def swap_averages(self) -> None:
        """No-op: the server keeps none."""

    async def export(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        with stopping(), tempfile.TemporaryDirectory() as temporary:
            adapter = self._adapter
            if not adapter.is_dir():
                urls, adapter = await self._adapter_urls(), Path(temporary)
                await self._call(lambda: _download(urls, adapter))
            merge_adapter(self._base, adapter, folder, tokenizer)
            if adapter != self._adapter:
                copy_checkpoint(adapter, self._adapter)

    async def _adapter_urls(self) -> dict[str, str]:
        """By the name of a file: an archive, or from 0.28 of the package on the adapter's own files."""
        rest = await self._call(lambda: self._service.create_rest_client())
        if hasattr(self._trainer, "save_weights_external"):
            name = f"export-{self._published}"
            saved = await self._call(lambda: self._trainer.save_weights_external(name, ttl_seconds=_SAMPLER_SECONDS))
            return (await self._call(lambda: rest.get_external_weights_urls(saved.path))).urls
        # SkyRL leaves out the kind of weights, which the package's own parser of paths wants.
        run, _, name = self._sampler_path.removeprefix("tinker://").partition("/")
        answer = await self._call(lambda: rest.get_checkpoint_archive_url(run, name))
        return {"archive.tar": answer.url}


@contextmanager
def stopping(rest: str = _GOES_ON) -> Iterator[None]:
    """Outside of an episode, a server that fails ends the run in a sentence."""
    try:
        yield
    except EngineFailed as error:
        raise UserError(f"{error}. {rest}.") from None


def _in_thread(call: Callable[[], Any]) -> "Future[Any]":
    """In a thread that does not keep the process from ending."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # nobody can cancel it from now on

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


async def _result(value: Any) -> Any:
    """0.25 returns clients and futures of two kinds, later versions awaitable futures of everything."""
    if isinstance(value, Future):
        return await _result(await asyncio.wrap_future(value))
    return await _result(await value) if inspect.isawaitable(value) else value


def _trained_tokens(sequences: Sequence[TrainedSequence]) -> int:
    return sum(len(sequence.trace.token_ids) - 1 for sequence in sequences)


def _sampled(values: Sequence[float], trace: TokenTrace) -> torch.Tensor:
    """The values of the sampled tokens."""
    return torch.tensor([v for v, sampled in zip(values, trace.loss_mask, strict=True) if sampled])


def _download(urls: Mapping[str, str], folder: Path) -> None:
    for name, url in urls.items():
        file = folder / Path(name).name
        urllib.request.urlretrieve(url, file)
        if tarfile.is_tarfile(file):
            with tarfile.open(file) as archive:
                archive.extractall(folder, filter="data")
