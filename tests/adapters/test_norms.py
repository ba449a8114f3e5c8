"""Norms by rank x rank matrices are those of the d x d difference."""

import pytest
import torch

from fedlora.adapters import Adapter, Factors, change_norm


def some(seed: int, rank: int, scale: float, shapes: dict[str, tuple[int, int]]) -> Adapter:
    generator = torch.Generator().manual_seed(seed)
    factors = {
        name: Factors(
            torch.randn(out, rank, generator=generator),
            torch.randn(rank, inner, generator=generator),
            scale,
        )
        for name, (out, inner) in shapes.items()
    }
    return Adapter(factors, {"score": torch.randn(3, 4, generator=generator)})


SHAPES = {"q": (12, 8), "v": (4, 8)}


@pytest.mark.parametrize(("rank", "scale"), [(3, 2.0), (5, 0.5)])
def test_against_the_dense_difference(rank: int, scale: float) -> None:
    head, update = some(0, 3, 2.0, SHAPES), some(1, rank, scale, SHAPES)
    squares = [
        (update.factors[name].matrix() - head.factors[name].matrix()).double().square().sum()
        for name in SHAPES
    ]
    squares.append((update.full["score"] - head.full["score"]).double().square().sum())
    assert change_norm(update, head) == pytest.approx(float(sum(squares)) ** 0.5, rel=1e-5)


def test_the_same_update_in_other_factors_has_the_same_norm() -> None:
    head, update = some(0, 3, 2.0, SHAPES), some(1, 3, 2.0, SHAPES)
    mix = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, -4.0]])
    mixed = {
        name: Factors(one.b @ mix, torch.linalg.inv(mix) @ one.a, one.scale)
        for name, one in update.factors.items()
    }
    norm = change_norm(update, head)
    assert change_norm(Adapter(mixed, update.full), head) == pytest.approx(norm, rel=1e-5)


def test_no_change_is_nothing_and_a_missing_module_takes_back_what_was() -> None:
    head = some(0, 3, 2.0, SHAPES)
    size = float(head.factors["q"].matrix().double().norm())
    assert change_norm(head, head) == pytest.approx(0, abs=1e-6 * size)
    without = Adapter({"v": head.factors["v"]}, head.full)
    assert change_norm(without, head) == pytest.approx(size, rel=1e-5)


@pytest.mark.parametrize("scale", [1e160, 1e308])
def test_a_change_beyond_float64_is_infinite_and_never_nothing(scale: float) -> None:
    head = some(0, 3, 2.0, SHAPES)
    assert change_norm(some(1, 3, scale, SHAPES), head) == float("inf")
