"""A model on quantized weights that becomes what a head is at any subnet: widths, side, adapter.

Quantized weights take no residuals. Plain ones stand beside the weights as a side path, which each
head brings anew; pooled ones are constant in a quantization group and add up in its offset.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import torch
from peft import PeftModel
from torch import Tensor

from fedlora.adapters import Adapter, AdapterError, Residual, names_at, returned, taken
from fedlora.adapters.receipt import relative_error
from fedlora.recipes.schema import LoraSection, ModelSection, QuantizeSection

from .gradients import check_gradients
from .lora import attach, lora_layers, read_adapter, update_shape, write_adapter
from .nested import NestedLinear
from .quantized_base import open_quantized, quantized_base
from .quantizers import store_fingerprint
from .source import resolve
from .subnet import Subnet, apply
from .tuned import tokenizer_of

FoundResiduals = Callable[[str], Mapping[str, Residual]]


class QuantizedModel:
    """One store of quantized weights, moved from head to head and from subnet to subnet.

    Attributes:
        model: the PEFT model.
        tokenizer: of the base.
        fold_error: of the offsets against the residuals that they hold, relative; the node's own
            receipt. A side path is set as it came.
    """

    def __init__(
        self,
        source: str,
        model: ModelSection,
        lora: LoraSection,
        quantize: QuantizeSection,
        bits: int,
        calibration: tuple[tuple[int, ...], ...] = (),
        lean: bool = False,
    ) -> None:
        """Open the store of the base, which is made on first use, and attach an adapter.

        Args:
            source: of the base.
            model: the task.
            lora: the adapter.
            quantize: how weights are rounded.
            bits: the widest that a weight can be read at.
            calibration: token ids of equal length, for GPTQ.
            lean: keep no more of a weight in memory than its width needs; a wider one is read from
                disk again.

        Raises:
            ModelError: if the base can't be found or quantized.
        """
        folder = resolve(source)
        made = quantized_base(folder, model, lora, quantize, bits, calibration)
        self._lora, self._per_width = lora, quantize.per_width
        self._open = partial(open_quantized, made, folder, model)
        self._attach = partial(attach, lora=lora, model=model)
        self._lean = lean
        self.model: PeftModel = self._attach(self._open())
        check_gradients(self.model)
        self._store = store_fingerprint(self.model)
        self.tokenizer = tokenizer_of(source)
        self.fold_error = 0.0
        self._layers = lora_layers(self.model)
        self._names: dict[str, str] = {}
        self._history: list[str] = []
        self._offsets: dict[str, Tensor] = {}
        self._below = ""

    @property
    def folded(self) -> str:
        """SHA-256 of the frozen weights and what stands beside them: equal on equal nodes."""
        return hashlib.sha256(f"{self._store}/{self._below}".encode()).hexdigest()

    def become(
        self,
        adapter: Adapter,
        subnet: Mapping[str, int],
        history: Sequence[str],
        residual_of: FoundResiduals,
        side: Mapping[str, Residual],
    ) -> None:
        """Set widths, what stands beside them, and the adapter.

        Args:
            adapter: the head's.
            subnet: bits of every module.
            history: digests of all residuals up to the head, oldest first.
            residual_of: gives the residuals of a digest; asked for pooled ones alone.
            side: the side path, for plain ones.

        Raises:
            AdapterError: if the head doesn't fit the model.
            ModelError: if the subnet doesn't.
        """
        self._hold(subnet)
        apply(self.model, Subnet(subnet))
        self._names = names_at(subnet) if self._per_width else {name: name for name in subnet}
        if missing := sorted(set(self._names.values()) - set(adapter.factors)):
            raise AdapterError(f"the head has no adapter for {missing[0]}")
        if self._lora.pooling > 1:
            self._add_up(history, residual_of)
        for module, name in self._names.items():
            layer = self._base_layer(module)
            if self._lora.pooling > 1:
                layer.set_offset(self._offsets.get(name))
            else:
                layer.set_side(self._fitting(module, side.get(name)))
        write_adapter(self.model, taken(adapter, self._names))
        self._below = _digest(subnet, side if self._lora.pooling == 1 else history)

    def read(self) -> Adapter:
        """The adapter as trained, under the names that the head gave it."""
        return returned(read_adapter(self.model), self._names)

    def _hold(self, subnet: Mapping[str, int]) -> None:
        """Have what the subnet needs of each weight, and no more where memory is short."""
        wanted = {name: subnet[name] for name in self._layers if name in subnet}
        if any(bits > self._base_layer(name).max_bits for name, bits in wanted.items()):
            self.model = self._attach(self._open())
            self._layers = lora_layers(self.model)
        if self._lean:
            for name, bits in wanted.items():
                if bits <= 4 < self._base_layer(name).max_bits:
                    self._layers[name].base_layer = self._base_layer(name).truncated(4)

    def _base_layer(self, module: str) -> NestedLinear:
        layer = self._layers[module].get_base_layer()
        assert isinstance(layer, NestedLinear)  # the store has them on every target
        return layer

    def _fitting(self, module: str, residual: Residual | None) -> Residual | None:
        shape = update_shape(self._layers[module])
        if residual is not None and residual.shape != shape:
            raise AdapterError(f"the side path of {module} is {residual.shape}, expected {shape}")
        return residual

    def _add_up(self, history: Sequence[str], residual_of: FoundResiduals) -> None:
        """Add the residuals that are new to the offsets, in float32."""
        if list(history[: len(self._history)]) != self._history:
            self._history, self._offsets, self.fold_error = [], {}, 0.0
        for digest in history[len(self._history) :]:
            for name, residual in residual_of(digest).items():
                added = residual.matrix() / self._lora.pooling
                total = self._offsets.get(name, torch.zeros(added.shape)).double() + added
                self._offsets[name] = total.float()
                error = relative_error(self._offsets[name].double(), total)
                self.fold_error = max(self.fold_error, error)
            self._history.append(digest)


def _digest(subnet: Mapping[str, int], below: Mapping[str, Residual] | Sequence[str]) -> str:
    digest = hashlib.sha256(repr(sorted(subnet.items())).encode())
    if isinstance(below, Mapping):
        for name, residual in sorted(below.items()):
            digest.update(name.encode() + b"\0")
            for part in (residual.u, residual.v):
                if part is not None:
                    digest.update(part.contiguous().numpy().data)
    else:
        digest.update(repr(list(below)).encode())
    return digest.hexdigest()


@lru_cache(maxsize=2)
def quantized(
    source: str,
    model: ModelSection,
    lora: LoraSection,
    quantize: QuantizeSection,
    bits: int,
    calibration: tuple[tuple[int, ...], ...] = (),
    lean: bool = False,
) -> QuantizedModel:
    """The quantized models of this process: nodes of two widths may share it."""
    return QuantizedModel(source, model, lora, quantize, bits, calibration, lean)
