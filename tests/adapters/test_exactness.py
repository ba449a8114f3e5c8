"""T1-T6: the folded, aggregated layer is the weighted mean of the nodes' layers.

Each check folds into a real module, runs it, and compares with the sum written out densely in
float64. The mutation tests then break the implementation in the ways in which published ones are
broken, and demand that the very same checks fail.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from fedlora import adapters
from fedlora.adapters import AdapterError, Factors, Residual

DTYPES = (torch.float32, torch.float64)
WEIGHT_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}
OUTPUT_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@dataclass(frozen=True)
class Implementation:
    """What is under test; the mutants replace a part of it."""

    exact_mean: Callable[..., tuple[Factors, Residual]] = adapters.exact_mean
    fold: Callable[[Tensor, Residual, bool], None] = adapters.fold


REAL = Implementation()


@dataclass(frozen=True)
class Case:
    """One layer and the nodes that trained an adapter on it."""

    out: int
    inner: int
    conv1d: bool = False
    ranks: tuple[int, ...] = (8, 8, 8)
    scales: tuple[float, ...] = (2.0, 2.0, 2.0)
    weights: tuple[float, ...] = (1.0, 1.0, 1.0)

    def module(self, dtype: torch.dtype, generator: torch.Generator) -> nn.Module:
        """A layer with random weight and bias, stored as the model's own class stores it."""
        module = Conv1D(self.out, self.inner) if self.conv1d else nn.Linear(self.inner, self.out)
        module = module.to(dtype)
        for parameter in module.parameters():
            parameter.data.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
        return module

    def nodes(self, dtype: torch.dtype, generator: torch.Generator) -> list[Factors]:
        """Warm-started factors: common ones plus small moves, as after some rounds."""
        most = max(self.ranks)
        b, a = (
            0.1 * torch.randn(shape, dtype=torch.float64, generator=generator)
            for shape in ((self.out, most), (most, self.inner))
        )
        moved = [
            [one + 0.02 * torch.randn(one.shape, generator=generator) for one in (b, a)]
            for _ in self.ranks
        ]
        return [
            Factors(b[:, :rank].to(dtype), a[:rank].to(dtype), scale)
            for (b, a), rank, scale in zip(moved, self.ranks, self.scales, strict=True)
        ]


def exact_update(nodes: list[Factors], weights: tuple[float, ...]) -> Tensor:
    """The weighted mean of the updates, written out: (out, in) in float64."""
    update = torch.zeros(nodes[0].b.shape[0], nodes[0].a.shape[1], dtype=torch.float64)
    for node, weight in zip(nodes, weights, strict=True):
        update += weight / sum(weights) * node.scale * (node.b.double() @ node.a.double())
    return update


def check(case: Case, dtype: torch.dtype, implementation: Implementation = REAL) -> None:
    """Aggregate, fold into the layer, and compare the weight and the output with the sum."""
    generator = torch.Generator().manual_seed(case.out * 31 + case.inner)
    module, nodes = case.module(dtype, generator), case.nodes(dtype, generator)
    x = torch.randn(5, case.inner, dtype=torch.float64, generator=generator)
    update = exact_update(nodes, case.weights)
    frozen = (module.weight.T if case.conv1d else module.weight).detach().double().clone()
    expected = x @ (frozen + update).T + module.bias.detach().double()

    mean, residual = implementation.exact_mean(nodes, case.weights)
    implementation.fold(module.weight, residual, case.conv1d)

    stored = (module.weight.T if case.conv1d else module.weight).detach().double()
    effective = stored + mean.scale * (mean.b.double() @ mean.a.double())
    assert mean.b.dtype == residual.u.dtype == dtype
    assert (effective - frozen - update).norm() <= WEIGHT_TOLERANCE[dtype] * update.norm()
    x_own = x.to(dtype)
    with torch.no_grad():
        made = module(x_own) + mean.scale * (x_own @ mean.a.T) @ mean.b.T
    assert (made.double() - expected).norm() <= OUTPUT_TOLERANCE[dtype] * (x @ update.T).norm()


RSLORA = 16 / math.sqrt(8)  # alpha / sqrt(rank)
UNEQUAL = {"weights": (11.0, 640.0, 64.5)}
MIXED = {"ranks": (4, 8, 16), "scales": (16 / 4, 8 / 8, 16 / math.sqrt(16))}
SHAPES = {"square": (48, 48), "wide": (40, 72), "gqa": (192, 576)}


def layers(**settings: tuple[float, ...]) -> list[Case]:
    """One case for each kind of layer."""
    linear = [Case(out, inner, **settings) for out, inner in SHAPES.values()]
    return [*linear, Case(48, 48, conv1d=True, **settings), Case(96, 32, conv1d=True, **settings)]


CASES = {
    "T1_linear_square": [Case(48, 48)],
    "T2_linear_non_square": [Case(40, 72), Case(72, 40), Case(192, 576)],
    "T3_conv1d": [Case(48, 48, conv1d=True), Case(96, 32, conv1d=True)],
    "T4_alpha_is_not_rank": layers(scales=(3.5,) * 3) + layers(scales=(0.25,) * 3),
    "T4_rslora": layers(scales=(RSLORA,) * 3),
    "T5_unequal_weights": layers(**UNEQUAL),
    "T6_unequal_ranks": layers(ranks=(4, 8, 16)),
    "T6_unequal_alphas": layers(scales=(1.0, 3.0, RSLORA)),
    "T6_unequal_everything": layers(**MIXED, **UNEQUAL),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_T1_linear_square(dtype: torch.dtype) -> None:
    for case in CASES["T1_linear_square"]:
        check(case, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_T2_linear_non_square(dtype: torch.dtype) -> None:
    for case in CASES["T2_linear_non_square"]:
        check(case, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_T3_conv1d(dtype: torch.dtype) -> None:
    for case in CASES["T3_conv1d"]:
        check(case, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["T4_alpha_is_not_rank", "T4_rslora"])
def test_T4_scales(name: str, dtype: torch.dtype) -> None:
    for case in CASES[name]:
        check(case, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_T5_unequal_weights(dtype: torch.dtype) -> None:
    for case in CASES["T5_unequal_weights"]:
        check(case, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["T6_unequal_ranks", "T6_unequal_alphas", "T6_unequal_everything"])
def test_T6_unequal_nodes(name: str, dtype: torch.dtype) -> None:
    for case in CASES[name]:
        check(case, dtype)


@pytest.mark.parametrize("nodes", [2, 3, 10, 30])
def test_any_number_of_nodes(nodes: int) -> None:
    settings = {"ranks": (4,) * nodes, "scales": (2.0,) * nodes}
    weights = tuple(1.0 + index for index in range(nodes))
    for case in layers(**settings, weights=weights):
        check(case, torch.float32)
        check(case, torch.float64)


def fold_transposed(weight: Tensor, residual: Residual, fan_in_fan_out: bool) -> None:
    """What the authors' own code does to nn.Linear."""
    adapters.fold(weight, residual, not fan_in_fan_out)


def mean_unscaled(nodes: list[Factors], weights: tuple[float, ...]) -> tuple[Factors, Residual]:
    """A residual without alpha / rank, as in two public implementations."""
    mean, residual = adapters.exact_mean(nodes, weights)
    assert residual.v is not None
    return mean, Residual(residual.u / mean.scale, residual.v)


def mean_ignoring_own_scales(
    nodes: list[Factors], weights: tuple[float, ...]
) -> tuple[Factors, Residual]:
    """All nodes taken to have the first one's scale."""
    return adapters.exact_mean([replace(one, scale=nodes[0].scale) for one in nodes], weights)


def mean_unweighted(nodes: list[Factors], weights: tuple[float, ...]) -> tuple[Factors, Residual]:
    """Every node counted alike, whatever it has seen."""
    return adapters.exact_mean(nodes, [1.0] * len(weights))


MUTANTS = {
    "fold transposed": replace(REAL, fold=fold_transposed),
    "scale dropped": replace(REAL, exact_mean=mean_unscaled),
    "residual left out": replace(REAL, fold=lambda weight, residual, fan_in_fan_out: None),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("name", CASES)
def test_every_check_fails_for_a_mutant(name: str, mutant: str, dtype: torch.dtype) -> None:
    for case in CASES[name]:
        with pytest.raises((AssertionError, AdapterError)) as failure:
            check(case, dtype, MUTANTS[mutant])
        # A transposed fold does not even fit a layer that is not square; all else must be found.
        fits = case.out == case.inner or mutant != "fold transposed"
        assert failure.type is (AssertionError if fits else AdapterError)


@pytest.mark.parametrize("case", CASES["T5_unequal_weights"])
def test_T5_fails_when_weights_are_ignored(case: Case) -> None:
    with pytest.raises(AssertionError):
        check(case, torch.float32, replace(REAL, exact_mean=mean_unweighted))


@pytest.mark.parametrize("case", CASES["T6_unequal_alphas"])
def test_T6_fails_when_own_scales_are_ignored(case: Case) -> None:
    with pytest.raises(AssertionError):
        check(case, torch.float32, replace(REAL, exact_mean=mean_ignoring_own_scales))
