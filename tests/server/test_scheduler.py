"""What the schedulers draw: means to the last digit, never beyond a node, all widths in time."""

import math
import statistics
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlora.adapters import ModelError, RecipeError
from fedlora.models.widths import mean_width
from fedlora.server.coverage import Coverage
from fedlora.server.scheduler import (
    BalancedSampler,
    Reach,
    Sampler,
    UniformSampler,
    tilted,
    van_der_corput,
)

WIDTHS = ((2, 3, 4), (3, 4, 8), (2, 3, 4, 8), (4, 8), (1, 32))
MODULES = {f"layers.{index}.proj": 1 + index % 3 for index in range(30)}
EQUAL = dict.fromkeys(MODULES, 7)
ANY = Reach(8)
PERIOD = 8
PINNED = [4, 4, 3, 3, 3, 8, 3, 8, 3, 3, 3, 4]


def balanced(modules: Mapping[str, int] = EQUAL, widths: tuple[int, ...] = (3, 4, 8)) -> Sampler:
    return BalancedSampler(modules, widths, PERIOD, seed=5)


@pytest.mark.parametrize("widths", WIDTHS)
def test_probabilities_have_the_mean_exactly_and_rise_with_it(widths: tuple[int, ...]) -> None:
    low, high = widths[0], widths[-1]
    means = [low + (high - low) * step / 500 for step in range(501)]
    edges = [low + 1e-15, low + 1e-9, high - 1e-12, high - 1e-6]
    highest = -1.0
    for mean in sorted(means + edges):
        shares = tilted(widths, mean)
        assert list(shares) == list(widths)
        assert abs(math.fsum(shares.values()) - 1) < 1e-12
        assert abs(math.fsum(width * share for width, share in shares.items()) - mean) < 1e-12
        assert highest <= shares[high] <= 1
        highest = shares[high]


@pytest.mark.parametrize("widths", WIDTHS)
def test_probabilities_are_of_maximum_entropy(widths: tuple[int, ...]) -> None:
    """The logarithms lie on a line: p_i ~ exp(lambda b_i)."""
    shares = tilted(widths, widths[0] + 0.37 * (widths[-1] - widths[0]))
    slopes = [(math.log(shares[b]) - math.log(shares[a])) / (b - a) for a, b in pairwise(widths)]
    assert slopes == pytest.approx([slopes[0]] * len(slopes), rel=1e-9)


def test_at_the_ends_one_width_is_certain() -> None:
    assert tilted((8, 4, 3), 3) == {3: 1, 4: 0, 8: 0}
    assert tilted((8, 4, 3), 8) == {3: 0, 4: 0, 8: 1}
    assert tilted((4,), 4) == {4: 1}
    for outside in (2.999, 8.001):
        with pytest.raises(ValueError, match="mean"):
            tilted((3, 4, 8), outside)


def test_the_mean_walks_a_triangle_between_the_extremes() -> None:
    sampler = BalancedSampler(EQUAL, (3, 4, 8), PERIOD, seed=0)
    walked = [sampler.means(round, {"a": ANY})["a"] for round in range(1, 2 * PERIOD + 1)]
    down = [8, 6.75, 5.5, 4.25, 3]
    assert walked == 2 * (down + down[3:0:-1])
    drawn = sampler.assign(1, {"a": ANY}), sampler.assign(1 + PERIOD // 2, {"a": ANY})
    assert [set(one["a"].values()) for one in drawn] == [{8}, {3}]


def test_a_draw_has_the_mean_that_it_is_aimed_at() -> None:
    sampler = BalancedSampler(MODULES, (3, 4, 8), PERIOD, seed=0)
    nodes = {f"node {index}": ANY for index in range(400)}
    aimed, drawn = sampler.means(2, nodes), sampler.assign(2, nodes)
    for aim in set(aimed.values()):
        means = [mean_width(MODULES, drawn[name]) for name in nodes if aimed[name] == aim]
        error = statistics.stdev(means) / math.sqrt(len(means))
        assert abs(statistics.fmean(means) - aim) <= 4 * error


@st.composite
def settings_of_a_round(
    draw: st.DrawFn,
) -> tuple[dict[str, int], list[int], dict[str, Reach], int, int]:
    sizes = draw(st.lists(st.integers(1, 10**9), min_size=1, max_size=12))
    modules = {f"m{index}": size for index, size in enumerate(sizes)}
    widths = draw(st.lists(st.integers(1, 32), min_size=1, max_size=5, unique=True))
    reach = st.builds(
        Reach,
        st.integers(min(widths), 40),
        st.one_of(st.just(math.inf), st.floats(min(widths), 40)),
    )
    nodes = draw(st.dictionaries(st.text(max_size=5), reach, min_size=1, max_size=5))
    return modules, widths, nodes, draw(st.integers(1, 50)), 2 * draw(st.integers(1, 8))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(settings_of_a_round())
def test_no_draw_is_beyond_a_node(
    setting: tuple[dict[str, int], list[int], dict[str, Reach], int, int],
) -> None:
    modules, widths, nodes, round, period = setting
    for sampler in (
        UniformSampler(modules, widths, 1),
        BalancedSampler(modules, widths, period, 1),
    ):
        drawn = sampler.assign(round, nodes)
        assert drawn.keys() == nodes.keys()
        for name, assignment in drawn.items():
            assert assignment.keys() == modules.keys()
            assert set(assignment.values()) <= set(widths)
            assert max(assignment.values()) <= nodes[name].max_width
            assert mean_width(modules, assignment) <= nodes[name].max_mean


def test_a_small_node_fills_its_memory_and_no_more() -> None:
    """Repair lowers no further than it must: the mean stays within one module of the budget."""
    small = Reach(8, 5.5)
    means = [
        mean_width(EQUAL, balanced().assign(1 + PERIOD * turn, {"a": small})["a"])
        for turn in range(50)
    ]
    assert max(means) <= 5.5
    assert statistics.fmean(means) > 5.2
    assert sum(mean > 5.5 - 5 / 30 for mean in means) > 20


def test_a_node_that_holds_no_subnet_is_named() -> None:
    for reach in (Reach(2), Reach(8, 2.9)):
        for sampler in (balanced(), UniformSampler(EQUAL, (3, 4, 8), 0)):
            with pytest.raises(ModelError, match=r"node a holds 2.* narrowest width .* 3"):
                sampler.assign(1, {"a": reach})


@pytest.mark.parametrize("period", [-2, 0, 1, 7])
def test_a_period_that_misses_the_narrowest_is_refused(period: int) -> None:
    with pytest.raises(RecipeError, match="even"):
        BalancedSampler(EQUAL, (3, 4, 8), period, seed=0)


SCRIPT = f"""
from fedlora.server.scheduler import BalancedSampler, Reach
nodes = {{"b": Reach(8, 5.5), "a": Reach(8), "c": Reach(4)}}
drawn = BalancedSampler({dict(reversed(EQUAL.items()))}, (8, 3, 4), {PERIOD}, 5).assign(3, nodes)
print([[drawn[n][m] for m in sorted(drawn[n])] for n in sorted(drawn)])
"""


def test_draws_depend_on_seed_round_and_names_alone() -> None:
    nodes = {"a": ANY, "c": Reach(4), "b": Reach(8, 5.5)}
    drawn = balanced().assign(3, nodes)
    listed = [[drawn[n][m] for m in sorted(drawn[n])] for n in sorted(drawn)]
    # Another process, other hash seeds, other orders of nodes, modules and widths.
    other = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert other.stdout.strip() == str(listed), other.stderr
    # And for good: a run that is resumed with a later version of Python draws on.
    assert listed[1][:12] == PINNED
    assert balanced().assign(4, nodes) != drawn
    assert BalancedSampler(EQUAL, (3, 4, 8), PERIOD, 6).assign(3, nodes) != drawn
    assert UniformSampler(EQUAL, (3, 4, 8), 5).assign(3, {"a": ANY}) == {
        "a": UniformSampler(EQUAL, (3, 4, 8), 5).assign(3, nodes)["a"]
    }


def test_uniform_means_spread_as_in_equation_4() -> None:
    """Var[Bit(s)] = sigma^2 / L, where sigma^2 = 2/3: 0.149 bits at L = 30."""
    sampler = UniformSampler(EQUAL, (2, 3, 4), seed=2)
    drawn = sampler.assign(1, {f"node {index}": ANY for index in range(3000)}).values()
    means = [mean_width(EQUAL, assignment) for assignment in drawn]
    expected = math.sqrt(2 / 3 / 30)
    assert expected == pytest.approx(0.149, abs=5e-4)
    assert statistics.fmean(means) == pytest.approx(3, abs=4 * expected / math.sqrt(3000))
    assert statistics.pstdev(means) == pytest.approx(expected, rel=0.05)  # 4 standard errors
    each = [sum(one[name] == 4 for one in drawn) / 3000 for name in EQUAL]
    assert each == pytest.approx([1 / 3] * 30, abs=0.04)


def coverage(sampler: Sampler, rounds: int, nodes: Mapping[str, Reach]) -> Coverage:
    covered = Coverage(EQUAL, (3, 4, 8))
    for round in range(1, rounds + 1):
        for assignment in sampler.assign(round, nodes).values():
            covered.add(round, assignment)
    return covered


def test_balanced_reaches_the_extremes_and_uniform_does_not() -> None:
    nodes = dict.fromkeys("abcd", ANY)
    found = coverage(balanced(), 2 * PERIOD, nodes).metrics()
    control = coverage(UniformSampler(EQUAL, (3, 4, 8), 5), 2 * PERIOD, nodes).metrics()
    for extreme in (3, 8):
        assert found[f"subnet_near_{extreme}"] >= 1 / PERIOD
        assert found[f"subnet_rounds_near_{extreme}"] >= 1 / 2
        assert control[f"subnet_near_{extreme}"] == 0
    assert found["subnet_std"] > 4 * control["subnet_std"]
    # The mean width is about as often in one part of the range as in another.
    assert all(1 / 16 <= found[f"subnet_bin_{index}"] <= 1 / 4 for index in range(8))
    assert sum(control[f"subnet_bin_{index}"] == 0 for index in range(8)) >= 4


class InStep:
    """The rival to spread phases: all nodes of a round are aimed at the same mean."""

    def assign(self, round: int, nodes: Mapping[str, Reach]) -> dict[str, dict[str, int]]:
        return {name: balanced().assign(round, {name: nodes[name]})[name] for name in nodes}


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_spread_phases_cover_more_in_few_rounds_than_nodes_in_step(count: int) -> None:
    nodes = {f"node {index}": ANY for index in range(count)}
    for rounds in (1, 2, 3):
        spread, step = (coverage(s, rounds, nodes).metrics() for s in (balanced(), InStep()))
        assert spread["subnet_near_3"] > step["subnet_near_3"] == 0
        assert spread["subnet_near_8"] > 0
        assert spread["subnet_std"] > 1.4 * step["subnet_std"]
    # No width waits: in step, whole rounds train no module at all at 3 or at 8 bits.
    longest = {}
    for name, sampler in (("spread", balanced()), ("step", InStep())):
        trained = [
            {width for one in sampler.assign(round, nodes).values() for width in one.values()}
            for round in range(1, PERIOD + 1)
        ]
        longest[name] = sum(widths >= {3, 8} for widths in trained)
    assert longest["step"] == PERIOD - 2
    assert longest["spread"] == PERIOD
    # And over a period each node has met every mean, as it would have alone.
    sampler = BalancedSampler(EQUAL, (3, 4, 8), PERIOD, 5)
    met = [sampler.means(round, nodes) for round in range(1, PERIOD + 1)]
    alone = sorted(sampler.means(round, {"a": ANY})["a"] for round in range(1, PERIOD + 1))
    assert all(sorted(means[name] for means in met) == alone for name in nodes)


def test_nodes_of_like_reach_are_spread_among_themselves() -> None:
    nodes = {"a": Reach(8), "b": Reach(4), "c": Reach(8), "d": Reach(4), "e": Reach(8, 6)}
    sampler = BalancedSampler(EQUAL, (3, 4, 8), PERIOD, 0)
    walked = [sampler.means(round, nodes) for round in range(1, PERIOD + 1)]
    assert all(means["b"] + means["d"] == 3 + 4 for means in walked)
    assert statistics.fmean(abs(means["a"] - means["c"]) for means in walked) > 0.4 * (8 - 3)
    assert [van_der_corput(place) for place in range(6)] == [0, 1 / 2, 1 / 4, 3 / 4, 1 / 8, 5 / 8]


def test_coverage_counts_what_was_drawn() -> None:
    modules = {"a": 3, "b": 1}
    covered = Coverage(modules, (3, 4, 8))
    assert covered.metrics() == {}
    covered.add(1, {"a": 8, "b": 8})
    covered.add(1, {"a": 3, "b": 4})
    covered.add(1, {"a": 8, "b": 8})
    covered.add(2, {"a": 4, "b": 8})
    assert covered.counts == {
        ("a", 8): 2,
        ("b", 8): 3,
        ("a", 3): 1,
        ("b", 4): 1,
        ("a", 4): 1,
    }
    found = covered.metrics()
    means = [8, 3.25, 8, 5]
    assert found["subnet_drawn"] == 4
    assert found["subnet_mean"] == pytest.approx(statistics.fmean(means))
    assert found["subnet_std"] == pytest.approx(statistics.pstdev(means))
    assert {name for name, share in found.items() if "bin" in name and share} == {
        "subnet_bin_0",
        "subnet_bin_3",
        "subnet_bin_7",
    }
    assert (found["subnet_near_8"], found["subnet_near_3"]) == (1 / 2, 1 / 4)
    assert found["subnet_rounds_near_8"] == found["subnet_rounds_near_3"] == 1 / 2
    assert found["subnet_uniform_8"] == 1 / 2
    assert found["subnet_uniform_3"] == found["subnet_uniform_4"] == 0
    assert (found["subnet_least_8"], found["subnet_most_8"]) == (2, 3)
    assert (found["subnet_least_3"], found["subnet_most_3"]) == (0, 1)


def test_coverage_of_one_width() -> None:
    covered = Coverage({"a": 1}, (4,))
    covered.add(1, {"a": 4})
    found = covered.metrics()
    assert found["subnet_bin_0"] == found["subnet_near_4"] == found["subnet_uniform_4"] == 1
