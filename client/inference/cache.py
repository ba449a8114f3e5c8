"""Keys and values of a text, in buffers that are written in place.

A draft tree is written behind the text like any tokens; afterwards the accepted path moves to the
front and the rest is forgotten. transformers' own layers copy the whole cache at every step, and
can only cut its end.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

SPARE = 256  # positions that a new buffer has beyond what is written to it first


class TreeLayer(CacheLayerMixin):
    """One layer's keys and values: buffers (batch, heads, capacity, width), filled to `length`.

    Sliding windows are a matter of the mask: every position is kept.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self) -> None:
        """Empty; the first tokens decide shape and type."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = 0
        self._held: list[Tensor] = []

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate buffers that hold what is given, and `SPARE` positions more."""
        capacity = key_states.shape[-2] + SPARE
        self._held = [_buffer(states, capacity) for states in (key_states, value_states)]
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append; returns views of all that is held."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[-2]
        if self.length > self._held[0].shape[-2]:
            self._held = [_grown(buffer, start, 2 * self.length) for buffer in self._held]
        keys, values = self._held
        keys[:, :, start : self.length] = key_states
        values[:, :, start : self.length] = value_states
        return keys[:, :, : self.length], values[:, :, : self.length]

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Of what stands from `start` on, keep the rows `path` (ascending), in that order."""
        if list(path) != list(range(len(path))):
            for buffer in self._held:
                rows = torch.tensor(path, device=buffer.device) + start
                buffer[:, :, start : start + len(path)] = buffer.index_select(2, rows)
        self.length = start + len(path)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget that many last positions; transformers passes them as a negative number."""
        self.length -= min(abs(tokens_to_remove), self.length)

    def reset(self) -> None:
        """Forget everything; the buffers stay."""
        self.length = 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that the next query sees at most, and the position of the first."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Positions held."""
        return self.length

    def get_max_length(self) -> int:
        """Without bound."""
        return -1


class TreeCache(Cache):
    """All layers of a model, made as the model asks for them."""

    def __init__(self) -> None:
        """Empty."""
        super().__init__(layer_class_to_replicate=TreeLayer)

    def reset(self) -> None:
        """Forget everything; the buffers stay."""
        for layer in self.layers:
            layer.reset()

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Compact every layer after a draft tree; see `TreeLayer.keep`."""
        for layer in self.layers:
            if isinstance(layer, TreeLayer):
                layer.keep(start, path)


def _buffer(like: Tensor, capacity: int) -> Tensor:
    batch, heads, _, width = like.shape
    return like.new_empty(batch, heads, capacity, width)


def _grown(buffer: Tensor, filled: int, capacity: int) -> Tensor:
    grown = _buffer(buffer, capacity)
    grown[:, :, :filled] = buffer[:, :, :filled]
    return grown
