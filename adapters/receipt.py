"""Receipts: measured proof that an aggregation, or a fold, is exact.

A transposed or unscaled fold scores within thousandths of a nat of a right one, so no loss curve
shows it. A receipt compares what was made with what it should be on random probe vectors, in
float64 and without ever building a d x d matrix.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .factors import Factors
from .mean import normalized
from .residual import Residual

PROBES = 4


@dataclass(frozen=True)
class Receipt:
    """Relative errors by module name. Exact in float32 means 1e-6 or less in each."""

    errors: Mapping[str, float]

    @property
    def worst(self) -> float:
        """The largest error; 0 for no modules."""
        return max(self.errors.values(), default=0.0)


def aggregation_error(
    factors: Sequence[Factors],
    weights: Sequence[float],
    mean: Factors,
    residual: Residual | None,
    generator: torch.Generator,
) -> float:
    """Distance of `s B A + R` from the weighted mean of the updates, relative to that mean.

    Args:
        factors: the nodes' updates of one module.
        weights: one per node.
        mean: the mean factors, as they are sent.
        residual: the residual as it is sent; None if the rule sends none.
        generator: draws the probe vectors.

    Returns:
        ||head x - mean x|| / ||mean x|| over the probes x.
    """
    x = torch.randn(mean.shape[1], PROBES, dtype=torch.float64, generator=generator)
    exact = torch.zeros(mean.shape[0], PROBES, dtype=torch.float64)
    for one, share in zip(factors, normalized(weights), strict=True):
        exact += share * _apply(one, x)
    made = _apply(mean, x)
    if residual is not None:
        made += residual.apply(x)
    return relative_error(made, exact)


def weight_products(weight: Tensor, fan_in_fan_out: bool, seed: int) -> Tensor:
    """A stored weight times probe vectors drawn from `seed`: (out, probes) in float64."""
    stored = weight.T if fan_in_fan_out else weight
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(stored.shape[1], PROBES, dtype=torch.float64, generator=generator)
    return (stored.double() @ x.to(weight.device)).cpu()


def fold_error(
    before: Tensor, weight: Tensor, residual: Residual, fan_in_fan_out: bool, seed: int
) -> float:
    """Distance of a folded weight from what it should be, relative to the latter.

    Args:
        before: `weight_products` of the weight as it was, with the same `seed`.
        weight: the weight after the fold, as stored.
        residual: what was folded.
        fan_in_fan_out: whether the weight is stored as (in, out).
        seed: of the probe vectors.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(residual.shape[1], PROBES, dtype=torch.float64, generator=generator)
    return relative_error(weight_products(weight, fan_in_fan_out, seed), before + residual.apply(x))


def relative_error(made: Tensor, exact: Tensor) -> float:
    """||made - exact|| / ||exact||; 0 if both are zero, infinite if only `exact` is, or for NaN."""
    difference, size = float((made - exact).norm()), float(exact.norm())
    if not math.isfinite(difference):
        return math.inf  # NaN would lose every comparison, and so pass for exact
    if difference == 0:
        return 0.0
    return difference / size if size > 0 else math.inf


def _apply(factors: Factors, x: Tensor) -> Tensor:
    return factors.scale * (factors.b.double() @ (factors.a.double() @ x))
