"""Pooled factors against the dense matrix with its pooling written out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlora.adapters import (
    Adapter,
    Factors,
    Residual,
    exact_mean,
    spread_adapter,
    spread_residual,
)


def pooling(inputs: int, group: int) -> torch.Tensor:
    """P (in/group, in), one entry at a time."""
    p = torch.zeros(inputs // group, inputs, dtype=torch.float64)
    for column in range(inputs):
        p[column // group, column] = 1 / group
    return p


def pooled(seed: int, out: int = 10, groups: int = 3, rank: int = 2) -> Factors:
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(out + groups, rank, generator=generator, dtype=torch.float64)
    return Factors(draw[:out], draw[out:].T.contiguous(), scale=1.5)


@pytest.mark.parametrize("group", [1, 4, 7])
def test_spreading_is_the_product_with_the_pooling(group: int) -> None:
    factors, p = pooled(0), pooling(3 * group, group)
    expected = factors.matrix() @ p
    wide = spread_adapter(Adapter({"layer": factors}), group).factors["layer"]
    torch.testing.assert_close(wide.matrix(), expected)
    for residual in (Residual(factors.b, factors.a), Residual(factors.b @ factors.a)):
        made = spread_residual(residual, group).matrix()
        torch.testing.assert_close(made, residual.matrix() @ p)


@settings(max_examples=25, deadline=None)
@given(
    weights=st.lists(st.floats(0.1, 10), min_size=2, max_size=5), group=st.sampled_from([2, 8, 64])
)
def test_T10_the_mean_of_pooled_updates_spreads_to_the_mean(
    weights: list[float], group: int
) -> None:
    updates = [pooled(seed) for seed in range(len(weights))]
    p = pooling(3 * group, group)
    total = sum(weights)
    exact = sum(w / total * one.matrix() @ p for w, one in zip(weights, updates, strict=True))
    mean, residual = exact_mean(updates, weights)
    made = mean.matrix() @ p + spread_residual(residual, group).matrix()
    assert float((made - exact).norm() / exact.norm()) < 1e-12
    groups = made.unflatten(1, (-1, group))
    assert bool((groups == groups[..., :1]).all())  # what an offset per group can hold
