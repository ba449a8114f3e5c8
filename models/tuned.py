"""The model that a head describes: base, residuals folded so far, and adapter.

Loading a base costs seconds and folding costs another, so a process keeps one and moves it from
head to head. Nodes that share a process share it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from fedlora.adapters import Adapter, Residual, fold_error, spread_residual, weight_products
from fedlora.recipes.schema import LoraSection, ModelSection

from .fingerprint import fingerprint
from .loading import load_base, load_tokenizer
from .lora import (
    attach,
    check_residuals,
    fold_residuals,
    lora_layers,
    read_adapter,
    set_frozen_weights,
    write_adapter,
)
from .source import resolve

_PROBE_SEED = 0


@dataclass(frozen=True)
class FoldedWeights:
    """Frozen weights after a number of folds, which can be set instead of folding.

    Attributes:
        covers: how many residuals of the head's history are in them.
        weights: by module, as stored; every module that was ever folded is among them.
    """

    covers: int
    weights: Mapping[str, Tensor]


class TunedModel:
    """A PEFT model that becomes whatever head it is asked to be.

    Attributes:
        model: the PEFT model; another object after the base had to be loaded afresh.
        tokenizer: of the base.
        base: fingerprint of the pretrained weights.
        history: digests of the residuals folded so far.
        fold_error: largest relative error of any weight after any fold; the nodes' own receipt.
    """

    def __init__(self, source: str, model: ModelSection, lora: LoraSection) -> None:
        """Load the base and attach an adapter.

        Raises:
            ModelError: if the model can't be found or doesn't fit the task.
        """
        self._folder: Path = resolve(source)
        self._section, self._lora = model, lora
        self.base = fingerprint(self._folder)
        self.tokenizer = tokenizer_of(source)
        self.model: PeftModel = self._load()
        self.history: list[str] = []
        self.fold_error = 0.0
        self._changed: set[str] = set()
        self._folded: str | None = None

    @property
    def folded(self) -> str:
        """SHA-256 of what the frozen weights have become: equal where the same was folded.

        Over the base's fingerprint, and name and bytes of each weight that a fold has changed.
        """
        if self._folded is None:
            digest = hashlib.sha256(self.base.encode())
            for name, weight in self.frozen_weights().items():
                digest.update(name.encode() + b"\0")
                digest.update(weight.cpu().contiguous().numpy().data)
            self._folded = digest.hexdigest()
        return self._folded

    def frozen_weights(self) -> dict[str, Tensor]:
        """The weights that a fold has changed, by module, as stored; not copies."""
        layers = lora_layers(self.model)
        return {
            name: layers[name].get_base_layer().weight.detach() for name in sorted(self._changed)
        }

    def become(
        self,
        adapter: Adapter,
        history: Sequence[str],
        residual_of: Callable[[str], Mapping[str, Residual]],
        snapshot: FoldedWeights | None = None,
    ) -> None:
        """Fold what is missing and set the adapter.

        Args:
            adapter: the head's.
            history: digests of all residuals up to the head, oldest first.
            residual_of: gives the residuals of a digest, by module.
            snapshot: stands for the oldest of them, if the model isn't past it already.

        Raises:
            AdapterError: if the head doesn't fit the model.
        """
        if list(history[: len(self.history)]) != self.history:
            self.model, self.history, self.fold_error = self._load(), [], 0.0
            self._changed, self._folded = set(), None
        if snapshot and snapshot.covers > len(self.history):
            set_frozen_weights(self.model, snapshot.weights)
            self.history = list(history[: snapshot.covers])
            self._changed, self._folded = set(snapshot.weights), None
        for digest in history[len(self.history) :]:
            self._fold(residual_of(digest))
            self.history.append(digest)
        write_adapter(self.model, adapter)

    def read(self) -> Adapter:
        """A copy of the adapter on the CPU."""
        return read_adapter(self.model)

    def _fold(self, residuals: Mapping[str, Residual]) -> None:
        """Fold one round's residuals, and measure what became of the weights."""
        check_residuals(self.model, residuals)
        found = lora_layers(self.model)
        layers = {name: found[name] for name in residuals}
        before = {
            name: weight_products(layer.get_base_layer().weight, layer.fan_in_fan_out, _PROBE_SEED)
            for name, layer in layers.items()
        }
        fold_residuals(self.model, residuals)
        self._changed, self._folded = self._changed | set(residuals), None
        for name, layer in layers.items():
            weight = layer.get_base_layer().weight
            added = spread_residual(residuals[name], self._lora.pooling)
            error = fold_error(before[name], weight, added, layer.fan_in_fan_out, _PROBE_SEED)
            self.fold_error = max(self.fold_error, error)

    def _load(self) -> PeftModel:
        return attach(load_base(self._folder, self._section), self._lora, self._section)


@lru_cache(maxsize=1)
def shared(source: str, model: ModelSection, lora: LoraSection) -> TunedModel:
    """The one tuned model of this process; another task's replaces it."""
    return TunedModel(source, model, lora)


@lru_cache(maxsize=1)
def tokenizer_of(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, one for all nodes of this process."""
    return load_tokenizer(resolve(source))
