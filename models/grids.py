"""Where a group's 4-bit grid lies, and the bytes of weights on it.

A grid has 16 cells of one width; a byte is a cell and one of 16 places in it. So the nearest byte
lies in the nearest cell, and nothing is lost at 8 bits for what is best at 4.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .nested import CENTRE

STEPS = 20  # of the half-quadratic solver
ROWS = 2048  # groups at a time, so that they stay in a core's cache
TINY = torch.finfo(torch.float32).tiny  # where the weights of a group are all equal


@dataclass(frozen=True, eq=False)
class Grid:
    """A 4-bit grid for each group.

    Attributes:
        scale: width of a cell (..., 1), float32; what is stored, float16 can hold.
        zero: centre of cell 0; likewise.
    """

    scale: Tensor
    zero: Tensor

    def cells(self, weight: Tensor) -> Tensor:
        """The nearest cell of each weight (..., group), 0 to 15, in float."""
        return self._position(weight).round_().clamp_(0, 15)

    def cells_near(self, weight: Tensor, reach: float, moved: Tensor) -> Tensor:
        """The cells nearest to `moved` whose centres are at most `reach` cells from `weight`.

        Args:
            weight: (..., group).
            reach: at least 0.5.
            moved: as `weight`.
        """
        position = self._position(weight)
        least, greatest = (position - reach).ceil(), (position + reach).floor()
        return self.cells(moved).clamp(least, greatest).clamp(0, 15)

    def codes(self, weight: Tensor, cells: Tensor | None = None) -> Tensor:
        """The nearest byte of each weight, within the given cells if there are any; in float."""
        codes = self._position(weight).sub_(CENTRE[8]).mul_(16).round_()
        if cells is None:
            return codes.clamp_(0, 255)
        return codes.clamp_(16 * cells, 16 * cells + 15)

    def values(self, codes: Tensor) -> Tensor:
        """Weights of bytes, as read at 8 bits."""
        return self.scale * (codes / 16 + CENTRE[8]) + self.zero

    def centres(self, cells: Tensor) -> Tensor:
        """Weights of cells, as read at 4 bits."""
        return self.scale * cells + self.zero

    def _position(self, weight: Tensor) -> Tensor:
        return (weight - self.zero).div_(self.scale.clamp(min=TINY))


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

    Half-quadratic quantization (Badri and Shaji, "HQQ", 2023) splits the error into outliers,
    found by soft thresholding, and a mean. At the size of a model's weights its threshold leaves
    no outliers, so the steps are of the mean alone; each group keeps the zero of least error.

    Args:
        weight: float32 (..., group).
    """
    flat = weight.reshape(-1, weight.shape[-1])
    scale, zero = zip(*(_moved(part) for part in flat.split(ROWS)), strict=True)
    shape = (*weight.shape[:-1], 1)
    return Grid(torch.cat(scale).view(shape), torch.cat(zero).view(shape))


def _moved(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and zero (n, 1) of groups (n, group)."""
    least, greatest = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    grid = Grid((greatest - least) / 15, least)
    best, error = grid.zero, torch.full_like(least, torch.inf)
    for _ in range(STEPS):
        left = weight - grid.centres(grid.cells(weight))
        found = left.abs().mean(-1, keepdim=True)
        best = torch.where(found < error, grid.zero, best)
        error = torch.minimum(found, error)
        grid = Grid(grid.scale, grid.zero + left.mean(-1, keepdim=True))
    stored = _storable(grid.scale, best)
    return stored.scale, stored.zero


def _storable(scale: Tensor, zero: Tensor) -> Grid:
    return Grid(scale.half().float(), zero.half().float())
