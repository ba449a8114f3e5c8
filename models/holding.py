"""How a node holds the frozen base: in float32, or at widths that fit its memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from transformers import PreTrainedModel

from fedlora.adapters import ModelError
from fedlora.recipes.schema import Task
from fedlora.recipes.sizes import parse_size

from .loading import empty_base
from .memory import predict_memory
from .quantized_base import targets
from .source import resolve
from .subnet import FLOAT, Subnet, fit, linear_shapes


@dataclass(frozen=True)
class Holding:
    """The frozen weights of a node.

    Attributes:
        modules: number of weights of each module that has an adapter.
        subnet: bits of each of them; None for float32.
        mean: the most bits that a weight may have on average.
        lean: whether no more of a weight may be in memory than its width needs.
    """

    modules: Mapping[str, int]
    subnet: Mapping[str, int] | None
    mean: float
    lean: bool = False

    @property
    def widest(self) -> int:
        """Bits of the widest weights."""
        return max(self.subnet.values()) if self.subnet else FLOAT


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
    folder = resolve(source)
    modules = targets(folder, task.model, task.lora)
    if memory is not None:
        return _fitting(task, modules, empty_base(folder, task.model), parse_size(memory))
    bits = FLOAT if precision in (None, "fp32") else int(str(precision).removeprefix("int"))
    if task.quantize.per_width:
        widths = sorted(task.quantize.widths)
        held = [width for width in widths if width <= bits]
        if not held:
            raise ModelError(
                f"this node holds {precision}, and the narrowest width of this run is {widths[0]} "
                "bits: hold wider weights, or add a width to quantize.widths"
            )
        bits = held[-1]
    return Holding(modules, None if bits == FLOAT else dict.fromkeys(modules, bits), bits)


def _fitting(task: Task, modules: Mapping[str, int], base: PreTrainedModel, budget: int) -> Holding:
    """The widest that fits: float32, or else 8 bits for as many modules as there is room for."""
    quantize, train, pooled = task.quantize, task.train, task.lora.kind == "pooled"
    shapes = linear_shapes(base, sorted(modules))

    def need(subnet: Subnet) -> float:
        return predict_memory(
            base,
            subnet,
            task.lora.rank,
            train.batch_size,
            train.max_length,
            quantize.group,
            0 if pooled else quantize.side_rank,
            pooled,
        ).total

    if not quantize.per_width and need(Subnet.uniform(list(shapes), FLOAT)) <= budget:
        return Holding(modules, None, FLOAT)
    widths = sorted(quantize.widths) if quantize.per_width else [4, 8]
    subnet = fit(shapes, budget, need, widths)
    wide = sum(modules[name] for name, bits in subnet.widths.items() if bits > 4)
    share = wide / sum(modules.values())
    # Any draw of this mean has at most that share at 8 bits, whatever else is in it.
    mean = widths[0] + share * (8 - widths[0]) if widths[-1] > 4 else widths[-1]
    return Holding(modules, subnet.widths, mean, lean=True)
