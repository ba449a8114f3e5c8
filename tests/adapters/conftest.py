"""Nodes whose factors stand close to each other, as after some rounds."""

from collections.abc import Callable

import pytest
import torch

from fedlora.adapters import Factors

Nodes = Callable[..., list[Factors]]


@pytest.fixture
def nodes() -> Nodes:
    """Makes updates of one (40, 72) module: common factors of rank 8, and a move of each node."""

    def make(count: int, dtype: torch.dtype = torch.float64, move: float = 0.02) -> list[Factors]:
        generator = torch.Generator().manual_seed(count)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator)

        b, a = 0.1 * normal(40, 8), 0.1 * normal(8, 72)
        moved = [(b + move * normal(*b.shape), a + move * normal(*a.shape)) for _ in range(count)]
        return [Factors(own_b.to(dtype), own_a.to(dtype), 2.0) for own_b, own_a in moved]

    return make
