"""Names of adapters that belong to one width of a module."""

import pytest
import torch

from fedlora.adapters import (
    Adapter,
    Factors,
    at_width,
    module_of,
    names_at,
    repeated,
    returned,
    taken,
)


def adapter(*names: str) -> Adapter:
    factors = {
        name: Factors(torch.full((2, 1), float(i)), torch.ones(1, 3), 1.0)
        for i, name in enumerate(names)
    }
    return Adapter(factors, {"score.weight": torch.ones(2)})


@pytest.mark.parametrize("module", ["model.layers.0.q_proj", "odd@name", "h.0"])
def test_a_name_gives_back_module_and_width(module: str) -> None:
    assert module_of(at_width(module, 4)) == (module, 4)
    assert module_of(module) == (module, None)


def test_every_width_starts_with_the_same_factors() -> None:
    start = adapter("q", "v")
    made = repeated(start, [8, 4])
    assert sorted(made.factors) == ["q@4", "q@8", "v@4", "v@8"]
    for name, one in made.factors.items():
        same = start.factors[module_of(name)[0]]
        assert torch.equal(one.b, same.b)
        assert one.b.data_ptr() != same.b.data_ptr()  # trained apart, and sent apart


def test_a_subnet_takes_its_adapters_and_returns_them_alone() -> None:
    whole = adapter("q@4", "q@8", "v@4", "v@8")
    names = names_at({"q": 8, "v": 4})
    subnet = taken(whole, names)
    assert subnet.factors["q"] is whole.factors["q@8"]
    assert subnet.factors["v"] is whole.factors["v@4"]
    back = returned(subnet, names)
    assert sorted(back.factors) == ["q@8", "v@4"]
    assert back.factors["q@8"] is whole.factors["q@8"]
    assert back.full is whole.full
