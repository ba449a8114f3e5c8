"""Edges that nobody thought of: any small shapes, ranks, scales, weights, and dtypes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlora.adapters import Factors, add, exact_mean

SIZES = st.integers(1, 9)
POSITIVE = st.floats(1e-6, 1e6)


@st.composite
def federations(draw: st.DrawFn) -> tuple[list[Factors], list[float], torch.dtype]:
    """Nodes with updates of one module, and their weights."""
    out, inner, count = draw(SIZES), draw(SIZES), draw(st.integers(1, 5))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    move = draw(st.sampled_from([0.0, 1e-3, 1.0]))
    common = torch.randn(out, 9, generator=generator), torch.randn(9, inner, generator=generator)
    nodes = []
    for _ in range(count):
        rank = draw(SIZES)
        b, a = (one + move * torch.randn(one.shape, generator=generator) for one in common)
        scale = draw(st.floats(0.1, 16))
        nodes.append(Factors(b[:, :rank].to(dtype), a[:rank].to(dtype), scale))
    return nodes, draw(st.lists(POSITIVE, min_size=count, max_size=count)), dtype


@settings(max_examples=150, deadline=None, derandomize=True)
@given(federations())
def test_mean_and_residual_are_the_mean_of_the_updates(
    federation: tuple[list[Factors], list[float], torch.dtype],
) -> None:
    nodes, weights, dtype = federation
    shares = [weight / sum(weights) for weight in weights]
    matrices = [share * one.matrix() for share, one in zip(shares, nodes, strict=True)]
    # The updates may cancel; rounding is relative to what was added up.
    size = sum(
        share * one.scale * float(one.b.double().norm() * one.a.double().norm())
        for share, one in zip(shares, nodes, strict=True)
    )
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    mean, residual = exact_mean(nodes, weights)
    assert mean.b.dtype == dtype
    assert residual.rank == (len(nodes) - 1) * max(one.rank for one in nodes)
    assert (mean.matrix() + residual.matrix() - sum(matrices)).norm() <= tolerance * size

    smaller = residual.smaller_form()
    recompressed, dropped = residual.recompressed()
    assert smaller.nbytes <= residual.nbytes
    assert recompressed.rank <= min(*residual.shape, residual.rank)
    assert dropped <= 1e-12
    limit = 1e-6 * size + 1e-6 * float(residual.matrix().norm())
    for form in (smaller, recompressed, add([recompressed])):
        assert (form.matrix() - residual.matrix()).norm() <= limit
