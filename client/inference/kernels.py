"""A model's linear layers, multiplied in the way that is fastest here.

Only layers that are exactly `nn.Linear` are touched, and of those only what they compute with: each
gets a `forward` of its own, which goes away again. Layers that are given the same input, like the
three projections of attention, are multiplied as one. An adapter on a float32 layer is merged into
the copy that is multiplied; the model's own weights stay as they are.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from transformers import PreTrainedModel

from .forms import Form, Precision, Product, forms

ROWS = (1, 2, 8)  # tokens in the check; one and several take different kernels
SPEED_ROWS = 8  # tokens at which forms are compared
REPEATS = 3
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}  # of the largest output
COARSE = 2e-2
BYTES = {"widened": 4, "halved": 2, "halved_widened": 4, "quantized": 1, "quantized_slowly": 8}


@dataclass(frozen=True)
class Layer:
    """A module whose forward is replaced by a product.

    Attributes:
        module: `nn.Linear`, or PEFT's LoRA layer around one.
        weight: what it multiplies by, (out, in), adapter included.
        bias: (out,), if any.
    """

    module: nn.Module
    weight: Tensor
    bias: Tensor | None


class Kernels:
    """The replaced layers of one model, until `close`.

    Attributes:
        chosen: for each shape (out, in), the name of the form in use.
    """

    def __init__(
        self, model: PreTrainedModel, precision: Precision | None = None, leave: bool = False
    ) -> None:
        """Replace what can be replaced on this device, or `leave` the model as it is."""
        self.chosen: dict[tuple[int, int], str] = {}
        self._products: dict[nn.Module, Product] = {}
        self._nbytes = 0
        self._forms: dict[tuple[int, int, torch.dtype], Form | None] = {}
        self._precision = precision
        if leave or model.device.type != "cpu":
            return
        with torch.inference_mode():
            for group in _groups(model, list(_layers(model))):
                self._replace(group)

    def close(self) -> None:
        """Give every layer its own forward back."""
        self.suspend()
        self._products.clear()

    def suspend(self) -> None:
        """Let the model compute as it would by itself."""
        for module in self._products:
            module.__dict__.pop("forward", None)

    def resume(self) -> None:
        """Undo `suspend`."""
        for module, product in self._products.items():
            module.forward = product

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspended inside the block."""
        self.suspend()
        try:
            yield
        finally:
            self.resume()

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Resumed inside the block."""
        self.resume()
        try:
            yield
        finally:
            self.suspend()

    @property
    def nbytes(self) -> int:
        """Memory of the weights' copies, in bytes."""
        return self._nbytes

    def _replace(self, group: list[Layer]) -> None:
        weight = group[0].weight
        bias = group[0].bias
        if len(group) > 1:
            weight = torch.cat([layer.weight for layer in group])
            if bias is not None:
                bias = torch.cat([layer.bias for layer in group if layer.bias is not None])
        form = self._form(weight, bias)
        if form is None:
            return
        product = form(weight, bias)
        self._nbytes += weight.numel() * BYTES.get(form.__name__, weight.element_size())
        if len(group) == 1:
            self._patch(group[0].module, product)
            return
        shared = _Shared(product, [len(layer.weight) for layer in group])
        for place, layer in enumerate(group):
            self._patch(layer.module, partial(shared, place))

    def _patch(self, module: nn.Module, product: Product) -> None:
        module.forward = product
        self._products[module] = product

    def _form(self, weight: Tensor, bias: Tensor | None) -> Form | None:
        """The fastest form that is right, measured once for each shape; None to leave layers."""
        key = (*weight.shape, weight.dtype)
        if key not in self._forms:
            self._forms[key] = self._measured(weight, bias)
            chosen = self._forms[key]
            self.chosen[key[:2]] = chosen.__name__ if chosen else "plain"
        return self._forms[key]

    def _measured(self, weight: Tensor, bias: Tensor | None) -> Form | None:
        reference, *others = forms(weight.dtype, self._precision)
        sample = torch.randn(
            max(ROWS), weight.shape[1], generator=torch.Generator().manual_seed(0)
        ).to(weight.dtype)
        slow = reference(weight, bias)
        best: Form | None = None if reference.__name__ == "plain" else reference
        quickest = _seconds(slow, sample[:SPEED_ROWS])
        for form in others:
            try:
                product = form(weight, bias)
                right = all(_agree(product(sample[:n]), slow(sample[:n])) for n in ROWS)
            except (RuntimeError, AttributeError, NotImplementedError):
                continue  # this torch, or this processor, has no such kernel
            seconds = _seconds(product, sample[:SPEED_ROWS]) if right else float("inf")
            if seconds < quickest:
                best, quickest = form, seconds
        return best


class _Shared:
    """One product for layers that are given the same tensor, one after the other."""

    def __init__(self, product: Product, widths: list[int]) -> None:
        self._product, self._widths = product, widths
        self._input: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def __call__(self, place: int, x: Tensor) -> Tensor:
        if x is not self._input:
            self._input = x
            self._outputs = self._product(x).split(self._widths, dim=-1)
        output = self._outputs[place]
        if place == len(self._widths) - 1:
            self._input, self._outputs = None, ()
        return output


def _layers(model: nn.Module) -> Iterator[Layer]:
    """What can be replaced: exact `nn.Linear`s, and LoRA layers on float32 ones."""
    merged: set[nn.Module] = set()
    for module in model.modules():
        if type(module) is LoraLinear and _mergeable(module):
            base: Any = module.get_base_layer()
            weight = base.weight.detach()
            for name in module.active_adapters:
                if name in module.lora_A:
                    weight = weight + module.get_delta_weight(name)
            merged.update(module.modules())
            yield Layer(module, weight, base.bias)
        elif type(module) is nn.Linear and module not in merged:
            yield Layer(module, module.weight.detach(), module.bias)


def _mergeable(module: Any) -> bool:
    """Whether a LoRA layer is base and product, and nothing else."""
    base = module.get_base_layer()
    return (
        type(base) is nn.Linear
        and base.weight.dtype == torch.float32
        and not module.disable_adapters
        and not module.merged
        and not module.lora_variant
        and not any(module.lora_bias.values())
    )


def _groups(model: nn.Module, layers: list[Layer]) -> list[list[Layer]]:
    """Layers of one parent that are given the very same tensor, together; the others alone.

    Which they are shows when the model reads a few tokens.
    """
    inputs: dict[nn.Module, Tensor] = {}
    order: list[nn.Module] = []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        inputs[module] = args[0]
        order.append(module)

    hooks = [layer.module.register_forward_pre_hook(note) for layer in layers]
    try:
        model(input_ids=torch.tensor([[0, 1]]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    parents = {child: parent for parent in model.modules() for child in parent.children()}
    known = {layer.module: layer for layer in layers}
    groups: list[list[Layer]] = []
    for module in dict.fromkeys(order):
        layer, last = known[module], groups[-1][-1] if groups else None
        if (
            last
            and order.count(module) == 1
            and parents.get(last.module) is parents.get(module)
            and inputs[last.module] is inputs[module]
            and last.weight.dtype == layer.weight.dtype
            and (last.bias is None) == (layer.bias is None)
        ):
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return groups


def _agree(found: Tensor, expected: Tensor) -> bool:
    allowed = TOLERANCE.get(expected.dtype, COARSE) * float(expected.abs().max())
    return found.dtype == expected.dtype and float((found - expected).abs().max()) <= allowed


def _seconds(product: Product, x: Tensor) -> float:
    """Of a product, the fastest of a few."""
    product(x)
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        product(x)
        found.append(time.perf_counter() - began)
    return min(found)
