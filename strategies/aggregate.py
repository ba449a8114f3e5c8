"""Aggregation of the admitted updates: module by module, in node order, each with its receipt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from fedlora.adapters import (
    Adapter,
    Factors,
    Receipt,
    Residual,
    aggregation_error,
    exact_mean,
    mean_of_full,
    module_factors,
    module_names,
)
from fedlora.adapters.mean import Missing, those_with


@dataclass(frozen=True)
class Aggregate:
    """What a round makes.

    Attributes:
        adapter: mean factors, and the mean of the parameters trained in full.
        residuals: as they are sent, by module; empty where there is nothing to fold.
        receipt: distance of the two from the exact weighted mean.
    """

    adapter: Adapter
    residuals: Mapping[str, Residual]
    receipt: Receipt


def aggregate(
    adapters: Sequence[Adapter],
    weights: Sequence[float],
    head: Adapter,
    keep: Callable[[Residual], Residual | None],
    missing: Missing,
    seed: int,
) -> Aggregate:
    """Average updates in the order given; memory holds one module of all nodes at a time.

    Args:
        adapters: the nodes' updates; a lazy one is read module by module.
        weights: one per node.
        head: the adapter that was sent; the mean keeps its scales.
        keep: the residual as it is sent; None to drop it.
        missing: what to do about a module that some nodes lack.
        seed: of the receipt's probe vectors.

    Raises:
        AdapterError: if a node lacks a module under the rule "refuse", or all lack one under
            "zero"; under "skip" such a module stays as it was.
    """
    generator = torch.Generator().manual_seed(seed)
    factors: dict[str, Factors] = {}
    residuals: dict[str, Residual] = {}
    errors: dict[str, float] = {}
    module_names(adapters, missing)
    for name in sorted(head.factors):
        chosen = those_with(adapters, name, missing)
        if not chosen:
            factors[name] = head.factors[name]
            continue
        updates = module_factors([adapters[index] for index in chosen], name)
        parts = [weights[index] for index in chosen]
        mean, residual = exact_mean(updates, parts, head.factors[name].scale)
        sent = keep(residual) if residual.rank else None
        errors[name] = aggregation_error(updates, parts, mean, sent, generator)
        factors[name] = mean
        if sent is not None:
            residuals[name] = sent
    return Aggregate(Adapter(factors, mean_of_full(adapters, weights)), residuals, Receipt(errors))


def weighted_means(
    metrics: Sequence[Mapping[str, float]], weights: Sequence[float]
) -> dict[str, float]:
    """Weighted mean of each metric that every node reports; a plain mean if no weight counts."""
    if not metrics:
        return {}
    if not any(weights):
        weights = [1.0] * len(metrics)
    names = [name for name in metrics[0] if all(name in one for one in metrics)]
    total = sum(weights)
    return {
        name: sum(w * one[name] for w, one in zip(weights, metrics, strict=True)) / total
        for name in names
    }
