"""The law's numbers, and when a vertex is believed."""

import math
import re

import pytest
import torch

from fedlora.client.distillation.capacity import (
    NotIdentified,
    Point,
    Vertex,
    law_distance,
    law_holds,
    law_teacher,
    vertex,
)

SIZES = (1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000)


def points(
    best: float, spread: float, curve: float = 0.05, sizes: tuple[int, ...] = SIZES, seeds: int = 4
) -> list[Point]:
    """Students of a known parabola and normal noise."""
    draw = torch.Generator().manual_seed(9)
    return [
        Point(
            size,
            tuple(
                3
                + curve * math.log(size / best) ** 2
                + spread * torch.randn(1, generator=draw).item()
                for _ in range(seeds)
            ),
        )
        for size in sizes
    ]


def fitted(those: list[Point], seed: int = 0) -> Vertex | NotIdentified:
    return vertex(those, torch.Generator().manual_seed(seed))


def refusal(those: list[Point]) -> str:
    found = fitted(those)
    assert isinstance(found, NotIdentified)
    return found.reason


@pytest.mark.parametrize(("student", "teacher"), [(135, 325.7), (360, 887.8), (2900, 7232.7)])
def test_the_laws_teachers(student: int, teacher: float) -> None:
    assert law_teacher(student * 10**6) == pytest.approx(teacher * 1e6, rel=1e-3)
    assert law_distance(round(teacher * 1e6), student * 10**6) == pytest.approx(0, abs=1e-3)
    assert law_distance(round(teacher * 2e6), student * 10**6) == pytest.approx(math.log(2), 1e-3)
    assert law_holds(student * 10**6)


def test_the_law_says_nothing_of_tiny_students() -> None:
    assert law_teacher(300_000) is None
    assert law_distance(1_000_000, 300_000) is None
    assert not law_holds(300_000)


def test_a_planted_vertex_is_found() -> None:
    found = fitted(points(best=5e6, spread=0.002))
    assert isinstance(found, Vertex)
    assert found.size == pytest.approx(5e6, rel=0.05)
    assert found.low <= found.size <= found.high
    assert found.loss == pytest.approx(3, abs=0.005)
    assert found.misfit < 0.01


def test_more_spread_widens_the_interval() -> None:
    narrow, wide = fitted(points(4e6, 0.002)), fitted(points(4e6, 0.01))
    assert isinstance(narrow, Vertex)
    assert isinstance(wide, Vertex)
    assert wide.high / wide.low > narrow.high / narrow.low


def test_the_same_generator_gives_the_same_interval() -> None:
    noisy = points(4e6, 0.01)
    assert fitted(noisy) == fitted(noisy)
    assert fitted(noisy) != fitted(noisy, seed=1)


@pytest.mark.parametrize(
    ("those", "reason"),
    [
        (points(4e6, 0.002, sizes=SIZES[:2]), "3 sizes or more, found 2"),
        (points(4e6, 0.002, sizes=(10**6, 10**6, 2 * 10**6)), "found 2"),
        (points(4e6, 0.002, seeds=1), "two seeds or more"),
        (points(4e6, math.nan), "not finite"),
        (points(4e6, 0.001, curve=-0.05), "does not open upwards"),
        (points(100e6, 0.001), "above the sizes tried.*larger teachers"),
        (points(1e5, 0.001), "below the sizes tried.*smaller teachers"),
    ],
)
def test_a_vertex_that_is_not_identified_is_refused(those: list[Point], reason: str) -> None:
    assert re.search(reason, refusal(those))


def test_chance_alone_is_rarely_believed() -> None:
    believed = 0
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        flat = [Point(size, tuple(torch.randn(3, generator=draw).tolist())) for size in SIZES]
        believed += isinstance(vertex(flat, draw, draws=200), Vertex)
    assert believed <= 4


def test_a_vertex_within_the_spread_is_refused() -> None:
    """The mean curve has a vertex in range; too many of the resampled ones have not."""
    losses = [(3.00, 3.06), (2.99, 3.05), (2.985, 3.045), (2.99, 3.05), (3.00, 3.06)]
    those = [Point(size, pair) for size, pair in zip(SIZES, losses, strict=True)]
    assert "resampled curves" in refusal(those)
