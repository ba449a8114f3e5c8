"""How far an update moves the model: Frobenius norms of s B A, by rank x rank matrices alone.

Factors are not unique (B G, G^-1 A is the same update), so updates are judged on their product and
never on B or A: <B A, D C> = trace((D^T B)(A C^T)).
"""

import math

import torch
from torch import Tensor

from .factors import Adapter, Factors
from .mean import Missing


def product(one: Factors, other: Factors) -> float:
    """<s B A, s' B' A'>, in float64 and without a d x d matrix."""
    left = other.b.double().T @ one.b.double()  # (rank', rank)
    right = one.a.double() @ other.a.double().T  # (rank, rank')
    return float(one.scale * other.scale * torch.sum(left * right.T))


def change_norm(update: Adapter, head: Adapter, missing: Missing = "zero") -> float:
    """||update - head|| over all modules and parameters trained in full.

    A module that the update lacks counts as a zero update, or is left out under "skip". The square
    of a tiny difference of large updates can fall below the rounding of float64 and then counts as
    0; one beyond float64 is infinite.
    """
    squares = []
    names = update.factors if missing == "skip" else head.factors
    for name in names:
        was = head.factors[name]
        squares.append(product(was, was))
        if (one := update.factors.get(name)) is not None:
            squares.append(product(one, one) - 2 * product(one, was))
    squares += [_square(tensor - head.full[name]) for name, tensor in update.full.items()]
    if not all(map(math.isfinite, squares)):
        return math.inf  # infinities of both signs would make NaN, which no bar is below
    return math.sqrt(max(0.0, math.fsum(squares)))


def _square(tensor: Tensor) -> float:
    return float(tensor.double().square().sum())
