"""Where a group's 4-bit grid lies, and the bytes of weights on it.

A grid has 16 cells of one width; a byte is a cell and one of 16 places in it. So the nearest byte
lies in the nearest cell, and nothing is lost at 8 bits for what is best at 4.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .nested import CENTRE

STEPS = 20  # of the half-quadratic solver, which settles long before
NORM = 0.7  # an l_p norm with p < 1 cares for the many weights, not for the outlier


@dataclass(frozen=True, eq=False)
class Grid:
    """A 4-bit grid for each group.

    Attributes:
        scale: width of a cell (..., 1), float32 that float16 can hold.
        zero: centre of cell 0; likewise.
    """

    scale: Tensor
    zero: Tensor

    def cells(self, weight: Tensor) -> Tensor:
        """The nearest cell of each weight (..., group), 0 to 15, in float."""
        return self._position(weight).round().clamp(0, 15)

    def codes(self, weight: Tensor, cells: Tensor | None = None) -> Tensor:
        """The nearest byte of each weight, within the given cells if there are any; in float."""
        codes = (self._position(weight) - CENTRE[8]).mul(16).round()
        low, high = (0, 255) if cells is None else (16 * cells, 16 * cells + 15)
        return codes.clamp(low, high)

    def values(self, codes: Tensor) -> Tensor:
        """Weights of bytes, as read at 8 bits."""
        return self.scale * (codes / 16 + CENTRE[8]) + self.zero

    def centres(self, cells: Tensor) -> Tensor:
        """Weights of cells, as read at 4 bits."""
        return self.scale * cells + self.zero

    def _position(self, weight: Tensor) -> Tensor:
        # A group of equal weights has cells without width; they are the centre of cell 0.
        return torch.where(self.scale > 0, (weight - self.zero) / self.scale, 0)


def round_to_nearest(weight: Tensor) -> Grid:
    """The grid whose 256 places reach from the least weight of a group to the greatest.

    Args:
        weight: float32 (..., group).
    """
    least, greatest = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    scale = (greatest - least) / 255 * 16
    return _storable(scale, least - CENTRE[8] * scale)


def half_quadratic(weight: Tensor) -> Grid:
    """The grid of 16 cells from the least weight to the greatest, its zero moved to fit best.

    Half-quadratic quantization (Badri and Shaji, "HQQ", 2023) splits the l_p error into an outlier
    part, found by soft thresholding, and a mean; here each group keeps the best zero that it met.

    Args:
        weight: float32 (..., group).
    """
    least, greatest = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    scale = (greatest - least) / 15
    grid = best = _storable(scale, least)
    error = _error(grid, weight)
    strength = 10.0
    for _ in range(STEPS):
        left = weight - grid.centres(grid.cells(weight))
        outlier = left.sign() * (left.abs() - left.abs().pow(NORM - 1) / strength).clamp(min=0)
        grid = _storable(scale, grid.zero + (left - outlier).mean(-1, keepdim=True))
        found = _error(grid, weight)
        best = Grid(best.scale, torch.where(found < error, grid.zero, best.zero))
        error = torch.minimum(found, error)
        strength *= 1.01
    return best


def _error(grid: Grid, weight: Tensor) -> Tensor:
    """The l_p error of each group at 4 bits (..., 1)."""
    left = weight - grid.centres(grid.cells(weight))
    return left.abs().pow(NORM).mean(-1, keepdim=True)


def _storable(scale: Tensor, zero: Tensor) -> Grid:
    return Grid(scale.half().float(), zero.half().float())
