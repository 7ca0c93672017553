"""The weights of a model in training: those that compute, those that optimizers change, and those that are sampled from."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import Parameter
from transformers import PreTrainedModel

from slim_rl.core.errors import UserError
from slim_rl.training.config import LoraConfig


class Weights:
    """A model that is trained in place.

    In fp32 all three are the same. In a narrower type the model computes in that type, and each weight has a copy in fp32,
    which gathers the gradients and takes the optimizer's steps (Micikevicius et al. 2018, arXiv 1710.03740, section 3.1).
    With LoRA only the adapters are trained, and episodes are sampled from a copy into which they are merged.

    Args:
        model: a PreTrainedModel in fp32; it is changed.
        dtype: that the model computes in.
        lora: None trains all weights.
        reference: whether `reference` is going to be called.

    Raises:
        UserError: the package peft is not installed, or the model has no such layers.
    """

    def __init__(
        self,
        model: Any,
        dtype: torch.dtype = torch.float32,
        lora: LoraConfig | None = None,
        reference: bool = False,
    ):
        self.model: PreTrainedModel = model
        self.sampler: PreTrainedModel = model
        """What computes log-probs and gradients, and what an engine samples from."""
        if lora:
            self.sampler = copy.deepcopy(model).to(dtype)
            _add_adapters(model, lora)
        self._frozen = copy.deepcopy(model).to(dtype) if reference and not lora else None
        self.trained: dict[str, Parameter] = {n: w for n, w in model.named_parameters() if w.requires_grad}
        """By name, in fp32."""
        self._computing: dict[str, Parameter] = {}
        if dtype != torch.float32:
            self._computing = self.trained
            self.trained = {n: Parameter(w.detach().to(torch.float32, copy=True)) for n, w in self._computing.items()}
            model.to(dtype)
            for name, weight in self._computing.items():
                weight.register_post_accumulate_grad_hook(_gather_in(self.trained[name]))

    def zero_grad(self) -> None:
        for weight in self.trained.values():
            weight.grad = None

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
        if self._frozen is not None:
            yield self._frozen
            return
        self.model.disable_adapters()
        try:
            yield self.model
        finally:
            self.model.enable_adapters()

    def state(self) -> dict[str, torch.Tensor]:
        """What was trained, by name, in fp32."""
        return {name: weight.detach() for name, weight in self.trained.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, weight in self.trained.items():
            weight.copy_(state[name])
        self.follow()


def _gather_in(master: Parameter) -> Callable[[torch.Tensor], None]:
    def gather(weight: torch.Tensor) -> None:
        assert weight.grad is not None
        gradient, weight.grad = weight.grad.float(), None
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)

    return gather


def _add_adapters(model: PreTrainedModel, lora: LoraConfig) -> None:
    try:
        import peft
    except ImportError:
        raise UserError("train.lora needs the package peft: pip install peft==0.21.2.") from None
    targets = list(lora.targets) or "all-linear"
    alpha = 2 * lora.rank if lora.alpha is None else lora.alpha
    try:
        model.add_adapter(peft.LoraConfig(r=lora.rank, lora_alpha=alpha, target_modules=targets, bias="none"))
    except ValueError as error:
        raise UserError(f"train.lora.targets: {str(error).splitlines()[0]}") from None


def _merge(adapted: PreTrainedModel, plain: PreTrainedModel) -> None:
    """Give each layer of `plain` the weight of the adapted layer with its adapter added."""
    from peft.tuners.lora import Linear

    for name, layer in adapted.named_modules():
        if isinstance(layer, Linear):
            weight = plain.get_parameter(f"{name}.weight")
            weight.copy_(layer.get_base_layer().get_parameter("weight").float() + layer.get_delta_weight("default"))
