"""Widths of modules: what a subnet is, and the mean that budgets are given in."""

from collections.abc import Mapping
from typing import TypeAlias

Assignment: TypeAlias = dict[str, int]  # width in bits by module


def mean_width(modules: Mapping[str, int], assignment: Mapping[str, int]) -> float:
    """The mean width in bits, weighted by the modules' sizes.

    Args:
        modules: size of each module, in weights.
        assignment: width of each of them.
    """
    return sum(size * assignment[name] for name, size in modules.items()) / sum(modules.values())
