"""The weights of a model in training: those that compute, those that optimizers change, and those that are sampled from."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec

import torch
from torch.nn import Parameter
from transformers import PreTrainedModel

from slim_rl.core.errors import UserError
from slim_rl.engines.model import cast
from slim_rl.training.config import LoraConfig

_FIRST_SCALE = 2.0**16
"""As torch.amp.GradScaler's."""


class Weights:
    """A model that is trained in place.

    In fp32 all three are the same. In a narrower type the model computes in that type, and each weight has a copy in fp32,
    which gathers the gradients and takes the optimizer's steps (Micikevicius et al. 2018, arXiv 1710.03740, section 3.1).
    In fp16 the gradients are those of a multiple of the loss (section 3.2).
    With LoRA only the adapters are trained, and episodes are sampled from a copy into which they are merged.

    Args:
        model: it is changed.
        dtype: that the model computes in.
        lora: None trains all weights.
        reference: whether `reference` is going to be called.
        seed: of the adapters' first weights.

    Raises:
        UserError: the package peft is not installed, or `lora.targets` are no linear layers of the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        dtype: torch.dtype = torch.float32,
        lora: LoraConfig | None = None,
        reference: bool = False,
        seed: int = 0,
    ):
        self.model: PreTrainedModel = model
        self.sampler: PreTrainedModel = model
        """What computes log-probs and gradients, and what an engine samples from."""
        if lora:
            cast(model, dtype)
            self.sampler = copy.deepcopy(model)
            _add_adapters(model, lora, seed)
        computing: dict[str, Parameter] = {n: w for n, w in model.named_parameters() if w.requires_grad}
        narrow = dtype != torch.float32
        self.trained = {
            n: Parameter(w.detach().to(torch.float32, copy=True)) if narrow else w for n, w in computing.items()
        }
        """By name, in fp32."""
        cast(model, dtype)
        self.frozen = copy.deepcopy(model) if reference and not lora else None
        """The model as it was before; None if nobody asks for it, or if the adapters alone have to be left out."""
        self._computing = computing if narrow else {}
        self._scaled, self._scale = dtype == torch.float16, _FIRST_SCALE
        self._hooks = [
            weight.register_post_accumulate_grad_hook(partial(_gather, self.trained[name]))
            for name, weight in self._computing.items()
            if not self._scaled  # then they are gathered once all are known to be finite
        ]

    def zero_grad(self) -> None:
        self._scale = _FIRST_SCALE
        for weight in self.trained.values():
            weight.grad = None

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of `loss`. In fp16 its multiple is halved until no gradient is too large for the type; one that
        never was finite stays so."""
        if not self._scaled:
            loss.backward()
            return
        while True:
            (loss * self._scale).backward(retain_graph=True)
            gradients = [weight.grad for weight in self._computing.values() if weight.grad is not None]
            if self._scale == 1 or all(bool(gradient.isfinite().all()) for gradient in gradients):
                break
            self._scale /= 2
            for weight in self._computing.values():
                weight.grad = None
        for name, weight in self._computing.items():
            if weight.grad is not None:
                _gather(self.trained[name], weight, 1 / self._scale)

    @torch.no_grad()
    def follow(self) -> None:
        """After a step of the optimizers: compute with the new weights, and sample from them."""
        for name, weight in self._computing.items():
            weight.copy_(self.trained[name])
        if self.sampler is not self.model:
            _merge(self.model, self.sampler)

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The model as it was before the training."""
        if self.frozen is not None:
            yield self.frozen
            return
        self.model.disable_adapters()
        try:
            yield self.model
        finally:
            self.model.enable_adapters()

    def close(self) -> None:
        """The model may be trained by others again."""
        for hook in self._hooks:
            hook.remove()

    def state(self) -> dict[str, torch.Tensor]:
        """What was trained, by name, in fp32."""
        return {name: weight.detach() for name, weight in self.trained.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, weight in self.trained.items():
            weight.copy_(state[name])
        self.follow()


def _gather(master: Parameter, weight: torch.Tensor, factor: float = 1.0) -> None:
    assert weight.grad is not None
    gradient, weight.grad = weight.grad.float(), None
    gradient = gradient if factor == 1 else gradient * factor
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)


def check_peft() -> None:
    """Raises UserError: the package that makes adapters is not installed."""
    if find_spec("peft") is None:
        raise UserError("train.lora needs the package peft: pip install peft==0.21.2.")


def _add_adapters(model: PreTrainedModel, lora: LoraConfig, seed: int) -> None:
    check_peft()
    import peft
    from peft.tuners.lora import Linear
    from peft.tuners.tuners_utils import BaseTunerLayer

    targets = list(lora.targets) or "all-linear"
    alpha = 2 * lora.rank if lora.alpha is None else lora.alpha
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model.add_adapter(peft.LoraConfig(r=lora.rank, lora_alpha=alpha, target_modules=targets, bias="none"))
        except ValueError:
            raise UserError(f"train.lora.targets: the model has no linear layers {', '.join(lora.targets)}.") from None
    for name, layer in model.named_modules():
        if isinstance(layer, BaseTunerLayer) and not (isinstance(layer, Linear) and ".layers." in name):
            raise UserError(
                f"train.lora.targets: {name} cannot have an adapter; name linear layers in the model's layers."
            )


def _merge(adapted: PreTrainedModel, plain: PreTrainedModel) -> None:
    """Give each layer of `plain` the weight of the adapted layer with its adapter added."""
    from peft.tuners.lora import Linear

    for name, layer in adapted.named_modules():
        if isinstance(layer, Linear):
            weight = plain.get_parameter(f"{name}.weight")
            weight.copy_(layer.get_base_layer().get_parameter("weight").float() + layer.get_delta_weight("default"))
