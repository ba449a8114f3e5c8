"""A subnet: a width for each layer, what it weighs, and the widest that fits.

One store per layer serves several widths (see `nested`), so any assignment of widths to layers is
a model. 32 stands for the float32 weight that the base came with, which has no store.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from fedlora.adapters import ModelError

from .nested import WIDTHS, NestedLinear
from .quantizers import nested_layers

FLOAT = 32
SCALE_BYTES = 4  # of a group: scale and zero in float16


@dataclass(frozen=True)
class LinearShape:
    """A linear layer, as far as memory goes."""

    out_features: int
    in_features: int

    @property
    def weights(self) -> int:
        """How many numbers it holds, without bias."""
        return self.out_features * self.in_features

    def stored_bytes(self, bits: int, group: int) -> int:
        """Bytes of the layer in a store that is as wide as `bits` needs; 3 and 2 are kept as 4."""
        if bits == FLOAT:
            return 4 * self.weights
        codes = self.weights if bits > 4 else self.weights // 2
        return codes + self.weights // group * SCALE_BYTES


Shapes = Mapping[str, LinearShape]


@dataclass(frozen=True)
class Subnet:
    """An assignment of widths to modules.

    Attributes:
        widths: 32, 8, 4, 3 or 2, by module.
    """

    widths: Mapping[str, int]

    def __post_init__(self) -> None:
        """Check the widths.

        Raises:
            ModelError: if there is no such width.
        """
        for name, bits in self.widths.items():
            if bits != FLOAT and bits not in WIDTHS:
                raise ModelError(
                    f"{name} has no width of {bits!r} bits: expected one of {(FLOAT, *WIDTHS)}"
                )

    @classmethod
    def uniform(cls, names: Sequence[str], bits: int) -> "Subnet":
        """One width for all modules."""
        return cls(dict.fromkeys(names, bits))

    def weight_bytes(self, shapes: Shapes, group: int) -> int:
        """Bytes of the modules' weights as stored: codes, scales and zeros, or float32."""
        return sum(shapes[name].stored_bytes(bits, group) for name, bits in self.widths.items())


def linear_shapes(base: nn.Module, names: Sequence[str]) -> dict[str, LinearShape]:
    """The shapes of modules of a base model, on the meta device or not.

    Raises:
        ModelError: if one is no nn.Linear.
    """
    modules = dict(base.named_modules())
    shapes = {}
    for name in names:
        module = modules.get(name)
        if not isinstance(module, nn.Linear):
            raise ModelError(f"{name} is no linear module of {type(base).__name__}")
        shapes[name] = LinearShape(module.out_features, module.in_features)
    return shapes


def apply(model: nn.Module, subnet: Subnet) -> None:
    """Set the widths of a model, PEFT's wrapper around it or not; on an error nothing has changed.

    Raises:
        ModelError: if the subnet leaves out a quantized layer, names a module that is none
            (other than at 32 bits), or asks of one what its store does not hold.
    """
    layers = nested_layers(model)
    if missing := sorted(set(layers) - set(subnet.widths)):
        raise ModelError(f"the subnet gives no width for {missing[0]}")
    wanted: list[tuple[NestedLinear, int]] = []
    for name, bits in subnet.widths.items():
        if (name in layers) == (bits == FLOAT):
            held = "quantized" if name in layers else "not quantized"
            raise ModelError(f"the subnet wants {name} at {bits} bits, but here it is {held}")
        if name in layers:
            if bits > layers[name].max_bits:
                raise ModelError(
                    f"the subnet wants {name} at {bits} bits, but {layers[name].max_bits} are "
                    "stored here"
                )
            wanted.append((layers[name], bits))
    for layer, bits in wanted:
        layer.bits = bits


def fit(
    shapes: Shapes,
    budget_bytes: float,
    cost: Callable[[Subnet], float],
    widths: Sequence[int] = (4, 8, FLOAT),
) -> Subnet:
    """The widest subnet within a budget: the widest uniform one, then module by module wider.

    Args:
        shapes: the modules, in the order in which they are made wider.
        budget_bytes: the most that it may cost.
        cost: bytes of a subnet, e.g. its `weight_bytes` or the total of `predict_memory`.
        widths: to choose from.

    Raises:
        ModelError: if the narrowest does not fit; the message says what it needs.
    """
    names, rising = list(shapes), sorted(widths)
    uniform = [Subnet.uniform(names, bits) for bits in rising]
    fitting = [subnet for subnet in uniform if cost(subnet) <= budget_bytes]
    if not fitting:
        raise ModelError(
            f"{rising[0]} bits for all layers need {cost(uniform[0]) / 1e9:.2f} GB, more than the "
            f"{budget_bytes / 1e9:.2f} GB of the budget; give more, or use a smaller model or batch"
        )
    best = fitting[-1]
    for bits in rising[len(fitting) :][:1]:
        for name in names:
            wider = Subnet({**best.widths, name: bits})
            if cost(wider) > budget_bytes:
                break
            best = wider
    return best
