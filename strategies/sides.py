"""Side paths: what a node puts beside frozen weights that can't take residuals.

A quantized weight rounds a residual away, so such a node computes W x + U (V x) instead. U and V
are the best factors of a given rank of the sum of *all* residuals (Eckart and Young, 1936), made
anew each round from the exact sum and sent instead of the residuals: they replace the former ones,
so that what is cut off never accumulates.
"""

from dataclasses import dataclass

import torch

from fedlora.adapters import Residual, add
from fedlora.protos import Side, describe, encode

from .heads import HeadStore
from .payloads import residual_tensors
from .records import HeadRecord


@dataclass(frozen=True)
class SidePath:
    """The side path of a head.

    Attributes:
        payload: factors by module, as safetensors bytes.
        proto: describes them, with the share of the squared norm that they lack.
    """

    payload: bytes
    proto: Side


class Sides:
    """Makes side paths from a ledger; holds the sum of its residuals, once one is asked for."""

    def __init__(self, heads: HeadStore, rank: int) -> None:
        """Make them with `rank`; 0 for all that the sum has."""
        self._heads, self._rank = heads, rank or None
        self._history: tuple[str, ...] = ()
        self._sums: dict[str, Residual] = {}
        self._made: tuple[str, SidePath] | None = None

    def of(self, record: HeadRecord) -> SidePath:
        """The side path of a head; the last one is kept."""
        if self._made is None or self._made[0] != record.hash:
            self._made = record.hash, self._cut(record)
        return self._made[1]

    def _cut(self, record: HeadRecord) -> SidePath:
        self._advance(record.history)
        factors: dict[str, Residual] = {}
        kept = whole = 0.0
        for name, total in sorted(self._sums.items()):
            factors[name], dropped = total.recompressed(self._rank)
            energy = squared_norm(factors[name])
            kept, whole = kept + energy, whole + energy / (1 - dropped)
        payload = encode(residual_tensors(factors))
        lost = 1 - kept / whole if whole else 0.0
        return SidePath(payload, Side(manifest=describe(payload), dropped=max(0.0, lost)))

    def _advance(self, history: tuple[str, ...]) -> None:
        """Add what is new to the sums."""
        if history[: len(self._history)] != self._history:
            self._history, self._sums = (), {}
        for digest in history[len(self._history) :]:
            for name, residual in self._heads.residuals(digest).items():
                before = [self._sums[name]] if name in self._sums else []
                self._sums[name] = add([*before, residual])
        self._history = history


def squared_norm(residual: Residual) -> float:
    """||u v||^2, in float64 and without the product."""
    u = residual.u.double()
    if residual.v is None:
        return float(u.square().sum())
    v = residual.v.double()
    return float(torch.sum((u.T @ u) * (v @ v.T)))
