"""The size of a tree, by what passes cost."""

import pytest

from fedlora.client.inference.costs import LADDER, Costs

SCORES = [1.0, 0.8, 0.6, 0.4, 0.3, 0.2, 0.15, 0.1, 0.08, 0.05, 0.03, 0.02]


def measured(seconds: "dict[int, float]") -> Costs:
    costs = Costs()
    while (size := costs.next_size()) is not None:
        costs.observe(size, seconds[size], 1)
    return costs


FLAT = dict.fromkeys(LADDER, 0.05)
DEAR = {size: 0.05 * size for size in LADDER}
STEP = {size: 0.05 if size < 8 else 0.051 if size == 8 else 0.3 for size in LADDER}


def test_the_ladder_is_tried_once_and_only_as_far_as_it_pays() -> None:
    assert measured(FLAT).table == FLAT
    assert set(measured(DEAR).table) == {1, 2, 4, 8}  # eight were tried, and were dear


def test_size_follows_the_price() -> None:
    assert measured(FLAT).best(SCORES) == len(SCORES)
    assert measured(DEAR).best(SCORES) == 1
    assert measured(STEP).best(SCORES) == 8


def test_a_step_that_is_not_worth_its_time_is_not_made_larger() -> None:
    costs = measured(STEP)
    assert costs.best([1.0, 1e-6]) <= 2
    assert costs.best([1.0]) == 1


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_it_adapts(factor: float) -> None:
    costs = measured(FLAT)
    for _ in range(100):
        for size in (1, 4, 10, 40):
            costs.observe(size, 0.05 * factor, 2)
    for size in (1, 4, 10, 40):
        assert costs.of(size) == pytest.approx(0.05 * factor, rel=0.05)


def test_one_interruption_does_not_upset_it() -> None:
    costs = measured(FLAT)
    costs.observe(8, 60.0, 2)
    assert costs.of(8) < 0.06
