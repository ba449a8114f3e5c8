"""The exact weighted mean of LoRA updates: mean factors and the residual, from one rotation.

For nodes i = 1..k with weights w_i (sum 1) and factors B_i, A_i under a common scale s, take the
Householder reflection H that maps a pivot's unit vector to (sqrt(w_1), ..., sqrt(w_k)). Rotating
the stacks sqrt(w_i) B_i and sqrt(w_i) A_i by H leaves sum_i w_i B_i A_i unchanged. One rotated
block is the weighted mean (B, A); the others are weighted contrasts U_j, V_j, so that

    sum_i w_i B_i A_i  =  B A  +  sum_{j != pivot} U_j V_j.

Written out, a contrast is sqrt(w_j) (B_j - C) with C = (B - sqrt(w_p) B_p) / (1 - sqrt(w_p)): two
passes over the factors, no d x d matrix, no SVD, no difference of nearly equal products.

The mean of factors with a residual folded into the frozen weight is FedEx-LoRA (Singhal et al.,
"FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of LLMs", arXiv 2410.09432).
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from .errors import AdapterError
from .factors import Adapter, Factors
from .residual import Residual

Missing = Literal["refuse", "zero", "skip"]


def normalized(weights: Sequence[float]) -> list[float]:
    """Weights divided by their sum.

    Raises:
        AdapterError: if there is none, or one is not finite and above zero.
    """
    bad = [weight for weight in weights if not (math.isfinite(weight) and weight > 0)]
    if bad or not weights:
        raise AdapterError(f"weights must be finite and above zero, got {list(weights)}")
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def exact_mean(
    factors: Sequence[Factors], weights: Sequence[float], scale: float | None = None
) -> tuple[Factors, Residual]:
    """Mean factors and residual of one module's updates.

    Ranks may differ (zero-padded to the largest) and scales too (absorbed into `b` first).

    Args:
        factors: one per node, all of the same (out, in).
        weights: one per node, above zero; they need not sum to 1.
        scale: scale of the mean factors; the largest of the nodes' scales if not given.

    Returns:
        Factors B, A and a residual of rank (k - 1) r at most, scale included, with
        `mean.matrix() + residual.matrix()` equal to the weighted mean of the nodes' matrices.
        Both in float32, or in float64 if a node's factors are.

    Raises:
        AdapterError: if shapes differ, counts differ, or a weight is not above zero.
    """
    shares = normalized(weights)
    if len(shares) != len(factors) or len({one.shape for one in factors}) != 1:
        raise AdapterError(
            f"updates of one module need one weight each and one common (out, in); got "
            f"{len(shares)} weights for shapes {[one.shape for one in factors]}"
        )
    scale = max(one.scale for one in factors) if scale is None else scale
    rank = max(one.rank for one in factors)
    common = [one.with_scale(scale).padded(rank) for one in factors]
    dtype = reduce(torch.promote_types, (one.b.dtype for one in factors), torch.float32)
    mean_b, u = _rotate([one.b for one in common], shares, dtype, dim=1, factor=scale)
    mean_a, v = _rotate([one.a for one in common], shares, dtype, dim=0, factor=1.0)
    return Factors(mean_b, mean_a, scale), Residual(u, v)


def _rotate(
    blocks: Sequence[Tensor], shares: Sequence[float], dtype: torch.dtype, dim: int, factor: float
) -> tuple[Tensor, Tensor]:
    """The weighted mean of `blocks`, and their contrasts times `factor`, joined along `dim`."""
    total = _weighted_sum(blocks, shares)
    mean = total.to(dtype, copy=True)
    size = list(mean.shape)
    rank = size[dim]
    size[dim] = rank * (len(blocks) - 1)
    contrasts = mean.new_empty(size)
    if len(blocks) > 1:
        # The smallest weight as pivot keeps 1 - sqrt(w_p) away from zero.
        pivot = shares.index(min(shares))
        root = math.sqrt(shares[pivot])
        centre = total.sub_(blocks[pivot].double(), alpha=root).div_(1 - root)
        # The float64 centre in two float32 parts: a difference rounds relative to itself, so that
        # a contrast keeps its digits however close the nodes are, at the speed of float32.
        high = centre.to(dtype, copy=True)
        low = centre.sub_(high).to(dtype)
        others = [index for index in range(len(blocks)) if index != pivot]
        for index, contrast in zip(others, contrasts.split(rank, dim), strict=True):
            torch.sub(blocks[index], high, out=contrast)
            contrast.sub_(low).mul_(factor * math.sqrt(shares[index]))
    return mean, contrasts


def _weighted_sum(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """The weighted sum, accumulated in float64 in the order given."""
    total = tensors[0].double() * shares[0]
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        total.add_(tensor.double(), alpha=share)
    return total


def module_names(adapters: Sequence[Adapter], missing: Missing) -> list[str]:
    """The modules to aggregate, sorted; under the rule "refuse" all nodes must have the same.

    Raises:
        AdapterError: naming the module that some nodes lack.
    """
    names = sorted(set().union(*(adapter.factors for adapter in adapters)))
    if missing == "refuse":
        for name in names:
            lacking = [i for i, adapter in enumerate(adapters) if name not in adapter.factors]
            if lacking:
                raise AdapterError(
                    f"module {name} is missing in update(s) {lacking} of {len(adapters)}; give all "
                    'nodes the same target modules, or declare missing = "zero" to count an '
                    "absent module as no change"
                )
    return names


def module_factors(adapters: Sequence[Adapter], name: str) -> list[Factors]:
    """The updates of one module in node order; a node that lacks it counts as a zero update.

    Raises:
        AdapterError: if every node lacks it.
    """
    present = [adapter.factors.get(name) for adapter in adapters]
    like = next((one for one in present if one is not None), None)
    if like is None:
        raise AdapterError(f"module {name} is in no update")
    zero = Factors(torch.zeros_like(like.b), torch.zeros_like(like.a), like.scale)
    return [zero if one is None else one for one in present]


def those_with(adapters: Sequence[Adapter], name: str, missing: Missing) -> list[int]:
    """Which updates are averaged for a module: under the rule "skip" those that have it alone."""
    if missing != "skip":
        return list(range(len(adapters)))
    return [index for index, adapter in enumerate(adapters) if name in adapter.factors]


def mean_of_full(adapters: Sequence[Adapter], weights: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean of the parameters trained in full, accumulated in float64.

    Raises:
        AdapterError: if the nodes' names or shapes differ.
    """
    shares = normalized(weights)
    names = [sorted(adapter.full) for adapter in adapters]
    if any(one != names[0] for one in names):
        raise AdapterError(f"nodes trained different parameters in full: {names}")
    means = {}
    for name in names[0]:
        tensors = [adapter.full[name] for adapter in adapters]
        if len({tensor.shape for tensor in tensors}) != 1:
            raise AdapterError(f"{name}: nodes sent shapes {[tuple(t.shape) for t in tensors]}")
        means[name] = _weighted_sum(tensors, shares).to(tensors[0].dtype)
    return means
