"""Receipts: small for what is right, large for what is not."""

import math
from collections.abc import Callable

import pytest
import torch

from fedlora.adapters import (
    Factors,
    Receipt,
    Residual,
    aggregation_error,
    exact_mean,
    fold,
    fold_error,
    weight_products,
)

Nodes = Callable[..., list[Factors]]
WEIGHTS = [1.0, 2.0, 5.0]


def probes() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_the_receipt_of_an_exact_mean_is_at_rounding(nodes: Nodes) -> None:
    factors = nodes(3, torch.float32)
    mean, residual = exact_mean(factors, WEIGHTS)
    assert aggregation_error(factors, WEIGHTS, mean, residual, probes()) <= 1e-7
    assert aggregation_error(factors, WEIGHTS, mean, residual.recompressed()[0], probes()) <= 1e-7
    dense = Residual(residual.matrix().float())
    assert aggregation_error(factors, WEIGHTS, mean, dense, probes()) <= 1e-7


def test_the_receipt_estimates_the_true_error_of_separate_averaging(nodes: Nodes) -> None:
    factors = nodes(3, torch.float32)
    mean, residual = exact_mean(factors, WEIGHTS)
    total = mean.matrix() + residual.matrix()
    true = float(residual.matrix().norm() / total.norm())
    measured = aggregation_error(factors, WEIGHTS, mean, None, probes())
    assert measured > 1e-2
    assert measured == pytest.approx(true, rel=0.5)


def test_the_receipt_finds_a_dropped_scale_wrong_weights_and_a_truncation(nodes: Nodes) -> None:
    factors = nodes(3, torch.float32)
    mean, residual = exact_mean(factors, WEIGHTS)
    for wrong_mean, wrong in (
        (mean, Residual(residual.u / mean.scale, residual.v)),
        exact_mean(factors, [1.0, 1.0, 1.0]),
        (Factors(mean.b, mean.a, 1.0), residual),
        (mean, residual.recompressed(residual.rank - 1)[0]),
    ):
        assert aggregation_error(factors, WEIGHTS, wrong_mean, wrong, probes()) > 1e-4


def test_nothing_is_not_a_number(nodes: Nodes) -> None:
    factors = nodes(3, torch.float32)
    mean, residual = exact_mean(factors, WEIGHTS)
    broken = Residual(residual.u * math.nan, residual.v)
    error = aggregation_error(factors, WEIGHTS, mean, broken, probes())
    assert error == math.inf
    assert Receipt({"a": 1e-8, "b": error}).worst == Receipt({"b": error, "a": 1e-8}).worst
    assert Receipt({}).worst == 0.0
    assert Receipt({"a": 1e-8, "b": 3e-8}).worst == 3e-8


def test_updates_that_are_all_zero_are_exact_only_if_the_head_is(nodes: Nodes) -> None:
    zero = [Factors(0 * one.b, one.a, one.scale) for one in nodes(3, torch.float32)]
    mean, residual = exact_mean(zero, WEIGHTS)
    assert aggregation_error(zero, WEIGHTS, mean, residual, probes()) == 0.0
    stray = exact_mean(nodes(3, torch.float32), WEIGHTS)[1]
    assert aggregation_error(zero, WEIGHTS, mean, stray, probes()) == math.inf


@pytest.mark.parametrize("fan_in_fan_out", [False, True])
def test_the_fold_receipt_finds_a_wrong_fold_of_a_small_residual(fan_in_fan_out: bool) -> None:
    """A residual is about 1e-4 of its weight; a wrong fold must still stand out."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 64, generator=generator)
    residual = Residual(
        torch.randn(64, 8, generator=generator), torch.randn(8, 64, generator=generator)
    )
    size = 1e-4 * float(weight.norm() / residual.matrix().norm())
    residual = Residual(residual.u * size, residual.v)
    before = weight_products(weight, fan_in_fan_out, seed=9)

    def error(folded: Residual, as_fan_in_fan_out: bool) -> float:
        made = weight.clone()
        fold(made, folded, as_fan_in_fan_out)
        return fold_error(before, made, residual, fan_in_fan_out, seed=9)

    assert error(residual, fan_in_fan_out) <= 1e-7
    assert error(residual, not fan_in_fan_out) > 1e-5
    assert error(Residual(residual.u / 2, residual.v), fan_in_fan_out) > 1e-5
    assert error(Residual(0 * residual.u, residual.v), fan_in_fan_out) > 1e-5
    assert error(Residual(1.02 * residual.u, residual.v), fan_in_fan_out) > 1e-6


def test_the_fold_receipt_works_where_the_layer_is_not_square() -> None:
    weight = torch.randn(96, 32, generator=probes())  # Conv1D: (in, out)
    u, v = torch.randn(32, 4, generator=probes()), torch.randn(4, 96, generator=probes())
    residual = Residual(1e-3 * u, v)
    before = weight_products(weight, True, seed=1)
    assert before.shape[0] == 32
    fold(weight, residual, True)
    assert fold_error(before, weight, residual, True, seed=1) <= 1e-7
