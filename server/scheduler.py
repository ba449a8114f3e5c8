"""Which subnet each node trains in a round: resource-balanced over the rounds, or uniform.

Drawing a width for each module uniformly concentrates the mean width, Var[Bit(s)] = sigma^2 / L
(LLM-QFA, arXiv 2405.20202, eq. 4): with 30 modules, subnets near all-narrow or all-wide are never
trained, though they are what is asked for afterwards. The resource-balanced sampler moves the
mean of the draws along a triangle wave instead (eq. 5), so that over a period every mean width
comes about equally often. Nodes walk the triangle at different phases: a round covers its range.

As printed, eq. 5 lacks `+ b_1` and takes t for t mod SL. It leaves open how a mean becomes
probabilities: here those of maximum entropy, p_i ~ exp(lambda b_i), which have that mean exactly.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, cycle
from typing import Protocol

from fedlora.adapters.errors import ModelError, RecipeError
from fedlora.models.widths import Assignment


@dataclass(frozen=True)
class Reach:
    """What a node can hold.

    Attributes:
        max_width: no module wider than this, in bits.
        max_mean: mean width in bits, weighted by the modules' sizes, that its memory holds.
    """

    max_width: int
    max_mean: float = math.inf


class Sampler(Protocol):
    """Draws subnets: the same ones for the same seed, round and nodes, in any order and process."""

    def assign(self, round: int, nodes: Mapping[str, Reach]) -> dict[str, Assignment]:
        """The subnet that each of these nodes trains, none beyond its reach.

        Args:
            round: counted from 1.
            nodes: those of this round, by name.

        Raises:
            ModelError: if a node can't hold even the narrowest subnet.
        """
        ...


@dataclass(frozen=True)
class UniformSampler:
    """Each width that a node can hold is as likely as any other: the control.

    Attributes:
        modules: size of each module, in weights.
        widths: bits that there are.
        seed: of the draws.
    """

    modules: Mapping[str, int]
    widths: Sequence[int]
    seed: int

    def assign(self, round: int, nodes: Mapping[str, Reach]) -> dict[str, Assignment]:
        """See `Sampler`."""
        drawn = {}
        for name, reach in nodes.items():
            held = held_widths(self.widths, name, reach)
            shares = dict.fromkeys(held, 1 / len(held))
            generator = random.Random(f"subnet/{self.seed}/{round}/{name}")
            drawn[name] = draw(self.modules, shares, reach.max_mean, generator)
        return drawn


@dataclass(frozen=True)
class BalancedSampler:
    """LLM-QFA's resource-balanced sampler, over rounds and within each node's reach.

    Attributes:
        modules: size of each module, in weights.
        widths: bits that there are.
        period: rounds from the widest mean to the narrowest and back; even, so that both are met.
        seed: of the draws.
    """

    modules: Mapping[str, int]
    widths: Sequence[int]
    period: int
    seed: int

    def __post_init__(self) -> None:
        """Check the period.

        Raises:
            RecipeError: if it is not even and positive.
        """
        if self.period < 2 or self.period % 2:
            raise RecipeError(
                f"a period of {self.period} rounds never meets the narrowest subnet: expected an "
                "even number, at least 2"
            )

    def assign(self, round: int, nodes: Mapping[str, Reach]) -> dict[str, Assignment]:
        """See `Sampler`."""
        drawn = {}
        for name, mean in self.means(round, nodes).items():
            shares = tilted(held_widths(self.widths, name, nodes[name]), mean)
            generator = random.Random(f"subnet/{self.seed}/{round}/{name}")
            drawn[name] = draw(self.modules, shares, nodes[name].max_mean, generator)
        return drawn

    def means(self, round: int, nodes: Mapping[str, Reach]) -> dict[str, float]:
        """The mean width that each node's draw is aimed at.

        Nodes of like reach stand together in the order that phases are given out in, and any run
        of that order is spread over the triangle.
        """
        order = sorted(nodes, key=lambda name: (nodes[name].max_width, nodes[name].max_mean, name))
        means = {}
        for place, name in enumerate(order):
            held = held_widths(self.widths, name, nodes[name])
            low, high = held[0], min(held[-1], nodes[name].max_mean)
            slot = (round - 1 + int(van_der_corput(place) * self.period)) % self.period
            means[name] = low + (high - low) * abs(2 * slot / self.period - 1)
        return means


def tilted(widths: Iterable[int], mean: float) -> dict[int, float]:
    """The probabilities of maximum entropy with that mean: p_i ~ exp(lambda b_i), narrowest first.

    Args:
        widths: distinct.
        mean: from the least to the greatest of them, where all the probability lies on that one.

    Raises:
        ValueError: if the mean is outside.
    """
    ordered = sorted(widths)
    if not ordered[0] <= mean <= ordered[-1]:
        raise ValueError(f"no probabilities on {ordered} have the mean {mean}")
    if mean in (ordered[0], ordered[-1]):
        return {width: float(width == mean) for width in ordered}
    # Widths are a bit or more apart: at 800 all but one underflow, so the mean lies in between.
    low, high = -800.0, 800.0
    while low < (middle := (low + high) / 2) < high:
        shares = _exponential(ordered, middle)
        if math.fsum(width * share for width, share in shares.items()) < mean:
            low = middle
        else:
            high = middle
    return _exponential(ordered, high)


def _exponential(widths: Sequence[int], tilt: float) -> dict[int, float]:
    greatest = max(tilt * widths[0], tilt * widths[-1])
    weights = [math.exp(tilt * width - greatest) for width in widths]
    total = math.fsum(weights)
    return {width: weight / total for width, weight in zip(widths, weights, strict=True)}


def draw(
    modules: Mapping[str, int],
    shares: Mapping[int, float],
    max_mean: float,
    generator: random.Random,
) -> Assignment:
    """A width for each module, independently; then modules chosen by lot are lowered to fit.

    Only `random()` is drawn from, whose values no version of Python changes.

    Args:
        modules: size of each module.
        shares: probability of each width, narrowest first.
        max_mean: at least the narrowest width; the weighted mean width never exceeds it.
        generator: of the draw.
    """
    widths, bounds = list(shares), list(accumulate(shares.values()))
    drawn = {
        name: widths[min(bisect_right(bounds, generator.random()), len(widths) - 1)]
        for name in sorted(modules)
    }
    total, bits = sum(modules.values()), sum(modules[name] * drawn[name] for name in drawn)
    lots = cycle(sorted(drawn, key=lambda name: generator.random()))
    while Fraction(bits, total) > max_mean:
        name = next(lots)
        lower = widths[max(widths.index(drawn[name]) - 1, 0)]
        bits -= modules[name] * (drawn[name] - lower)
        drawn[name] = lower
    return drawn


def held_widths(widths: Iterable[int], name: str, reach: Reach) -> list[int]:
    """The widths that a node can hold, narrowest first.

    Raises:
        ModelError: if there is none, or its memory doesn't hold all modules at the narrowest.
    """
    ordered = sorted(widths)
    most = min(reach.max_width, reach.max_mean)
    if most < ordered[0]:
        raise ModelError(
            f"node {name} holds {most:g} bits a weight at most, and the narrowest width of this "
            f"run is {ordered[0]}: give it more memory, or the recipe a narrower width"
        )
    return [width for width in ordered if width <= reach.max_width]


def van_der_corput(place: int) -> float:
    """The place-th point of 0, 1/2, 1/4, 3/4, 1/8, ...: any run of these is spread over [0, 1)."""
    digits = f"{place:b}"[::-1]
    return int(digits, 2) / (1 << len(digits))
