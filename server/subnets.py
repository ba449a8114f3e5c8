"""The subnets of a once-for-all run: drawn for the nodes of a round, within what each can hold."""

from collections.abc import Mapping

from fedlora.recipes.schema import Recipe

from .coverage import Coverage
from .roster import IntroducedNodes
from .scheduler import BalancedSampler, Reach, Sampler, UniformSampler


class DrawnSubnets:
    """Draws by the recipe's schedule, with the reach that each node introduced itself with.

    Attributes:
        coverage: counts what was drawn since this process began.
    """

    def __init__(self, recipe: Recipe, sizes: Mapping[str, int], roster: IntroducedNodes) -> None:
        """Draw for modules of these sizes, in weights."""
        self._roster, self._sampler = roster, sampler(recipe, sizes)
        self.coverage = Coverage(sizes, recipe.quantize.widths)

    def draw(self, round: int, nodes: Mapping[int, str]) -> dict[int, dict[str, int]]:
        """Bits by module, by node id.

        Raises:
            ModelError: if a node can't hold even the narrowest subnet.
        """
        widths = self._roster.widths(nodes)
        reaches = {nodes[one]: Reach(*width) for one, width in widths.items()}
        drawn = self._sampler.assign(round, reaches)
        for subnet in drawn.values():
            self.coverage.add(round, subnet)
        return {one: drawn[name] for one, name in nodes.items() if name in drawn}


def sampler(recipe: Recipe, sizes: Mapping[str, int]) -> Sampler:
    """The recipe's schedule over modules of these sizes."""
    quantize = recipe.quantize
    if quantize.schedule == "uniform":
        return UniformSampler(sizes, quantize.widths, recipe.seed)
    wave = quantize.wave(recipe.federation.rounds)
    return BalancedSampler(sizes, quantize.widths, wave, recipe.seed)
