"""GPTQ on nested codes: each column's rounding error is made good by the columns after it.

The cells are chosen first, as if the weight had 4 bits; then the places within the cells, as if it
had 8 but had to stay in its cell. So both widths have feedback of their own. For the second to
find its weight, the first must not carry a cell far away from it: that costs 3 % of the error at
4 bits and takes more than half of it at 8.

Frantar et al., "GPTQ", 2023 (arXiv 2210.17323), algorithm 1.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .grids import Grid, half_quadratic

DAMPING = 0.01  # of the mean of the Hessian's diagonal
DRIFT = 0.75  # cells between a weight and the centre of its cell, at most
BLOCK = 128  # columns whose errors reach the rest together


def gptq(weight: Tensor, hessian: Tensor, group: int) -> tuple[Tensor, Grid]:
    """Codes (out, groups, group) in float, and their grid, fitted to a layer's inputs.

    Args:
        weight: float32 (out, in).
        hessian: float64 (in, in), the sum of x x^T over the layer's inputs x.
        group: weights that share a scale.
    """
    out, inner = weight.shape
    feedback = _feedback(hessian)
    scale, zero = (weight.new_empty(out, inner // group, 1) for _ in range(2))
    grid = Grid(scale, zero)

    def lay(start: int, moved: Tensor) -> None:
        made = half_quadratic(moved)
        scale[:, start // group], zero[:, start // group] = made.scale, made.zero

    def at(column: int) -> Grid:
        return Grid(scale[:, column // group], zero[:, column // group])

    def cell(column: int, moved: Tensor) -> tuple[Tensor, Tensor]:
        found = at(column).cells_near(weight[:, column, None], DRIFT, moved)
        return found, at(column).centres(found)

    cells = _by_column(weight, feedback, cell, group, lay)

    def place(column: int, moved: Tensor) -> tuple[Tensor, Tensor]:
        found = at(column).codes(moved, cells[:, column, None])
        return found, at(column).values(found)

    codes = _by_column(weight, feedback, place, group, lambda start, moved: None)
    return codes.view(out, -1, group), grid


def _by_column(
    weight: Tensor,
    feedback: Tensor,
    choose: Callable[[int, Tensor], tuple[Tensor, Tensor]],
    group: int,
    begin: Callable[[int, Tensor], None],
) -> Tensor:
    """What `choose` gives for each column (out, 1): a code, and the weight that it stands for.

    `begin` sees each group's weights (out, group) as the columns before have moved them.
    """
    weight, chosen = weight.clone(), torch.empty_like(weight)
    inner = weight.shape[1]
    block = max(group, BLOCK // group * group)
    for start in range(0, inner, block):
        stop = min(start + block, inner)
        errors = weight.new_empty(len(weight), stop - start)
        for column in range(start, stop):
            if column % group == 0:
                begin(column, weight[:, column : column + group])
            w = weight[:, column, None]
            code, value = choose(column, w)
            chosen[:, column, None] = code
            error = (w - value) / feedback[column, column]
            weight[:, column:stop] -= error * feedback[column, column:stop]
            errors[:, column - start, None] = error
        weight[:, stop:] -= errors @ feedback[start:stop, stop:]
    return chosen


def _feedback(hessian: Tensor) -> Tensor:
    """The upper Cholesky factor of the damped inverse, whose rows say where errors go."""
    damped = hessian.clone()
    diagonal = damped.diagonal()
    diagonal += DAMPING * diagonal.mean().clamp(min=1e-12)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()
