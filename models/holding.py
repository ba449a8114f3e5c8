"""How a node holds the frozen base: in float32, or at widths that fit its memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedlora.adapters import ModelError
from fedlora.recipes.schema import Task

from .quantized_base import targets
from .source import resolve

FLOAT32 = 32  # bits


@dataclass(frozen=True)
class Holding:
    """The frozen weights of a node.

    Attributes:
        modules: number of weights of each module that has an adapter.
        subnet: bits of each of them; None for float32.
        mean: the most bits that a weight may have on average.
    """

    modules: Mapping[str, int]
    subnet: Mapping[str, int] | None
    mean: float

    @property
    def widest(self) -> int:
        """Bits of the widest weights."""
        return max(self.subnet.values()) if self.subnet else FLOAT32


def holding(source: str, task: Task, precision: str | None, memory: str | None) -> Holding:
    """What a node with this precision, or this much memory, holds in a task.

    Args:
        source: of the base.
        task: says which widths there are, and what is trained.
        precision: of the recipe's names; float32 if not given, or the widest of a once-for-all run.
        memory: that a round of training may take; the widest weights that fit are chosen.

    Raises:
        ModelError: if nothing fits.
    """
    modules = targets(resolve(source), task.model, task.lora)
    per_width, widths = task.quantize.per_width, sorted(task.quantize.widths)
    if memory is not None:
        return _fitting(source, task, modules, memory)
    bits = FLOAT32 if precision in (None, "fp32") else int(str(precision).removeprefix("int"))
    if not per_width:
        if bits == FLOAT32:
            return Holding(modules, None, FLOAT32)
        return Holding(modules, dict.fromkeys(modules, bits), bits)
    held = [width for width in widths if width <= bits]
    if not held:
        raise ModelError(
            f"this node holds {precision}, and the narrowest width of this run is {widths[0]} "
            "bits: hold wider weights, or add a width to quantize.widths"
        )
    return Holding(modules, dict.fromkeys(modules, held[-1]), held[-1])
