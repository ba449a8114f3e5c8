"""T7, T11, T13, T14, and the edges of the weighted mean of one module's updates."""

import itertools
from collections.abc import Callable

import pytest
import torch

from fedlora.adapters import (
    Adapter,
    AdapterError,
    Factors,
    exact_mean,
    mean_of_full,
    module_factors,
    module_names,
)

Nodes = Callable[..., list[Factors]]
OUT, INNER, RANK = 40, 72, 8


def exact(factors: list[Factors], weights: list[float]) -> torch.Tensor:
    """The weighted mean of the updates in float64."""
    return sum(one.matrix() * (w / sum(weights)) for one, w in zip(factors, weights, strict=True))


def error(factors: list[Factors], weights: list[float]) -> float:
    """Relative distance of mean and residual from the mean of the updates."""
    mean, residual = exact_mean(factors, weights)
    expected = exact(factors, weights)
    return float((mean.matrix() + residual.matrix() - expected).norm() / expected.norm())


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal to the last bit, the sign of zero included."""
    return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()


def test_the_factors_are_the_plain_weighted_mean(nodes: Nodes) -> None:
    factors, weights = nodes(3), [1.0, 2.0, 5.0]
    mean, residual = exact_mean(factors, weights)
    for side in ("b", "a"):
        plain = sum(w / 8 * getattr(one, side) for one, w in zip(factors, weights, strict=True))
        torch.testing.assert_close(getattr(mean, side), plain, rtol=1e-14, atol=1e-16)
    assert mean.scale == 2.0
    assert residual.rank == 2 * RANK  # (k - 1) r, not k r


def test_T7_a_missing_module_is_refused_or_a_zero_update(nodes: Nodes) -> None:
    full, other = nodes(2)
    updates = [Adapter({"q": full, "v": other}), Adapter({"q": other})]
    assert module_names(updates[:1], "refuse") == ["q", "v"]
    with pytest.raises(AdapterError, match=r"module v is missing in update\(s\) \[1\] of 2"):
        module_names(updates, "refuse")
    assert module_names(updates, "zero") == ["q", "v"]
    weights = [3.0, 1.0]
    factors = module_factors(updates, "v")
    mean, residual = exact_mean(factors, weights)
    torch.testing.assert_close(mean.matrix() + residual.matrix(), 0.75 * other.matrix())


def test_T7_modules_come_sorted_whatever_a_node_sends_first(nodes: Nodes) -> None:
    one, other = nodes(2)
    assert module_names(
        [Adapter({"b": one, "a": one}), Adapter({"a": other, "b": other})], "refuse"
    )
    assert module_names([Adapter({"b": one}), Adapter({"a": other})], "zero") == ["a", "b"]


def test_T11_a_dropped_node_leaves_the_renormalised_mean_of_the_rest(nodes: Nodes) -> None:
    factors, weights = nodes(4), [1.0, 2.0, 3.0, 4.0]
    mean, residual = exact_mean(factors[:2] + factors[3:], weights[:2] + weights[3:])
    total = 7.0
    rest = sum(w / total * factors[i].matrix() for i, w in ((0, 1.0), (1, 2.0), (3, 4.0)))
    torch.testing.assert_close(mean.matrix() + residual.matrix(), rest, rtol=1e-12, atol=1e-14)
    renormalised = exact_mean(factors[:2] + factors[3:], [1 / 7, 2 / 7, 4 / 7])
    torch.testing.assert_close(mean.b, renormalised[0].b, rtol=1e-15, atol=0)


def test_T13_the_same_order_gives_the_same_bytes(nodes: Nodes) -> None:
    for dtype in (torch.float32, torch.float64):
        first, second = (exact_mean(nodes(5, dtype), [1, 2, 3, 4, 5]) for _ in range(2))
        assert same_bytes(first[0].b, second[0].b)
        assert same_bytes(first[0].a, second[0].a)
        assert same_bytes(first[1].u, second[1].u)
        assert same_bytes(first[1].v, second[1].v)


def test_T13_another_order_gives_the_same_update(nodes: Nodes) -> None:
    factors, weights = nodes(4), [1.0, 2.0, 3.0, 3.0]
    expected = exact(factors, weights)
    for order in itertools.permutations(range(4)):
        mean, residual = exact_mean([factors[i] for i in order], [weights[i] for i in order])
        made = mean.matrix() + residual.matrix()
        assert (made - expected).norm() <= 1e-12 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_T14_one_node_keeps_its_bytes_without_residual(nodes: Nodes, dtype: torch.dtype) -> None:
    [one] = nodes(1, dtype)
    one.b[0, 0] = -0.0
    mean, residual = exact_mean([one], [17.0])
    assert same_bytes(mean.b, one.b)
    assert same_bytes(mean.a, one.a)
    assert mean.scale == one.scale
    assert residual.rank == residual.nbytes == 0
    assert residual.shape == (OUT, INNER)
    assert not residual.matrix().any()


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_that_mean_nothing_are_refused(nodes: Nodes, weight: float) -> None:
    with pytest.raises(AdapterError, match="finite and above zero"):
        exact_mean(nodes(2), [1.0, weight])
    with pytest.raises(AdapterError, match="finite and above zero"):
        mean_of_full([Adapter({}), Adapter({})], [1.0, weight])


def test_counts_and_shapes_are_checked(nodes: Nodes) -> None:
    factors = nodes(2)
    with pytest.raises(AdapterError, match="one weight each"):
        exact_mean(factors, [1.0])
    with pytest.raises(AdapterError, match="finite and above zero"):
        exact_mean([], [])
    narrow = Factors(factors[0].b[:10], factors[0].a, 2.0)
    with pytest.raises(AdapterError, match=r"one common \(out, in\)"):
        exact_mean([factors[0], narrow], [1.0, 1.0])


@pytest.mark.parametrize("weights", [[1e-12, 1.0], [1.0, 1e-12], [1e-300, 1.0], [1e300, 1e290]])
def test_weights_may_be_extremely_unequal(nodes: Nodes, weights: list[float]) -> None:
    assert error(nodes(2), weights) <= 1e-14
    mean, residual = exact_mean(nodes(2), weights)
    u, v = (nodes(2)[i] for i in range(2))
    w = [weight / sum(weights) for weight in weights]
    expected = w[0] * w[1] * 2.0 * (u.b - v.b) @ (u.a - v.a)  # the covariance of two nodes
    assert (residual.matrix() - expected).norm() <= 1e-9 * expected.norm()
    assert mean.b.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_factors_are_averaged_in_float32(nodes: Nodes, dtype: torch.dtype) -> None:
    factors = nodes(3, dtype)
    mean, residual = exact_mean(factors, [1.0, 1.0, 3.0])
    assert mean.b.dtype == mean.a.dtype == residual.u.dtype == torch.float32
    assert error(factors, [1.0, 1.0, 3.0]) <= 1e-7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_absorbing_a_scale_does_not_round(nodes: Nodes, dtype: torch.dtype) -> None:
    factors = [Factors(n.b, n.a, s) for n, s in zip(nodes(3, dtype), (1.0, 3.0, 5.6), strict=True)]
    mean, residual = exact_mean(factors, [1.0, 2.0, 3.0])
    assert mean.b.dtype == residual.u.dtype == torch.float32
    assert error(factors, [1.0, 2.0, 3.0]) <= 1e-7


def test_nodes_of_different_dtypes_average_in_the_widest(nodes: Nodes) -> None:
    half, single = nodes(2, torch.bfloat16)[0], nodes(2, torch.float32)[1]
    for factors in ([half, single], [single, half]):
        assert exact_mean(factors, [1.0, 1.0])[0].b.dtype == torch.float32
        assert error(factors, [1.0, 1.0]) <= 1e-7


def test_the_scale_of_the_mean_can_be_chosen(nodes: Nodes) -> None:
    factors = nodes(3)
    mean, residual = exact_mean(factors, [1.0, 1.0, 1.0], scale=0.5)
    assert mean.scale == 0.5
    torch.testing.assert_close(mean.matrix() + residual.matrix(), exact(factors, [1.0, 1.0, 1.0]))


@pytest.mark.parametrize("move", [1e-2, 1e-4, 1e-5])
def test_the_residual_keeps_its_digits_when_nodes_are_close(nodes: Nodes, move: float) -> None:
    """The dense float32 difference, as others compute it, is all noise at the last of these."""
    factors, weights = nodes(10, torch.float32, 0.1 * move), [1.0 + i for i in range(10)]
    shares = [w / sum(weights) for w in weights]
    b, a = (
        sum(s * getattr(one, side).double() for s, one in zip(shares, factors, strict=True))
        for side in ("b", "a")
    )
    expected = sum(
        2.0 * s * (one.b.double() - b) @ (one.a.double() - a)
        for s, one in zip(shares, factors, strict=True)
    )
    residual = exact_mean(factors, weights)[1].matrix()
    assert (residual - expected).norm() <= 3e-7 * expected.norm()
    dense = sum(2.0 * s * (one.b @ one.a) for s, one in zip(shares, factors, strict=True))
    dense -= 2.0 * (b.float() @ a.float())
    dense_error = (dense.double() - expected).norm() / expected.norm()
    assert dense_error > {1e-2: 1e-5, 1e-4: 0.1, 1e-5: 10.0}[move]


def test_parameters_trained_in_full_are_averaged_by_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    heads = [torch.randn(3, 5, generator=generator) for _ in range(3)]
    updates = [Adapter({}, {"score.weight": head}) for head in heads]
    [(name, made)] = mean_of_full(updates, [1.0, 2.0, 5.0]).items()
    plain = sum(w / 8 * head.double() for w, head in zip((1, 2, 5), heads, strict=True))
    assert name == "score.weight"
    assert same_bytes(made, plain.float())
    with pytest.raises(AdapterError, match="different parameters in full"):
        mean_of_full([updates[0], Adapter({})], [1.0, 1.0])
    with pytest.raises(AdapterError, match=r"score.weight: nodes sent shapes"):
        mean_of_full([updates[0], Adapter({}, {"score.weight": heads[0][:2]})], [1.0, 1.0])


def test_half_precision_heads_are_accumulated_in_float64() -> None:
    """A thousand times 1.0001 averages to 0.9785 when it is accumulated in float16."""
    value = torch.tensor([1.0001], dtype=torch.float16)
    updates = [Adapter({}, {"score.bias": value})] * 1000
    assert torch.equal(mean_of_full(updates, [1.0] * 1000)["score.bias"], value)
