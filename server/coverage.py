"""Which subnets were really trained: the statistics of what was drawn and came back."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedlora.models.widths import mean_width

BINS = 8
NEAR = 0.1  # of the range of widths


@dataclass
class Coverage:
    """Counts the subnets of a run.

    Attributes:
        modules: size of each module, in weights.
        widths: bits that there are.
        counts: how often a module was trained at a width.
    """

    modules: Mapping[str, int]
    widths: Sequence[int]
    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    _means: list[tuple[int, float]] = field(default_factory=list)  # round, mean width
    _uniform: Counter[int] = field(default_factory=Counter)

    def add(self, round: int, assignment: Mapping[str, int]) -> None:
        """Count one node's subnet."""
        self.counts.update(assignment.items())
        self._means.append((round, mean_width(self.modules, assignment)))
        for width in self.widths:
            share = mean_width(self.modules, {n: b == width for n, b in assignment.items()})
            self._uniform[width] += share >= 1 - NEAR

    def metrics(self) -> dict[str, float]:
        """All of it as flat numbers; empty before the first subnet.

        subnet_drawn: how many subnets.
        subnet_mean, subnet_std: of their mean widths, in bits.
        subnet_bin_I: share whose mean width lies in the I-th eighth of the range.
        subnet_near_W: share whose mean width is within a tenth of the range of an extreme, W.
        subnet_rounds_near_W: share of the rounds in which a node's was.
        subnet_uniform_W: share with at least nine tenths of the weights at width W.
        subnet_least_W, subnet_most_W: times that a module was trained at W, least and most.
        """
        if not self._means:
            return {}
        means = [mean for _, mean in self._means]
        low, high = min(self.widths), max(self.widths)
        found = {
            "subnet_drawn": float(len(means)),
            "subnet_mean": statistics.fmean(means),
            "subnet_std": statistics.pstdev(means),
        }
        bins = Counter(self._bin(mean) for mean in means)
        found |= {f"subnet_bin_{index}": bins[index] / len(means) for index in range(BINS)}
        rounds = {round for round, _ in self._means}
        for extreme in dict.fromkeys((low, high)):
            close = [r for r, mean in self._means if abs(mean - extreme) <= NEAR * (high - low)]
            found[f"subnet_near_{extreme}"] = len(close) / len(means)
            found[f"subnet_rounds_near_{extreme}"] = len(set(close)) / len(rounds)
        for width in self.widths:
            counts = [self.counts[name, width] for name in self.modules]
            found[f"subnet_uniform_{width}"] = self._uniform[width] / len(means)
            found[f"subnet_least_{width}"] = float(min(counts))
            found[f"subnet_most_{width}"] = float(max(counts))
        return found

    def _bin(self, mean: float) -> int:
        low, high = min(self.widths), max(self.widths)
        return min(int(BINS * (mean - low) / (high - low)), BINS - 1) if high > low else 0
