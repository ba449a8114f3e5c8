"""LoRA factors: what a node trains and sends, and what a head carries.

For one linear module the adapter adds `scale * b @ a` to the frozen weight, with `b` of shape
(out, rank) and `a` of shape (rank, in), whatever orientation the module stores its weight in.
Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", eq. 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional as F

from .errors import AdapterError


@dataclass(frozen=True, eq=False)
class Factors:
    """The update `scale * b @ a` of one module.

    Attributes:
        b: (out, rank).
        a: (rank, in).
        scale: alpha / rank, or alpha / sqrt(rank) for rsLoRA.

    Raises:
        AdapterError: if the shapes do not multiply, or the dtypes or devices differ.
    """

    b: Tensor
    a: Tensor
    scale: float

    def __post_init__(self) -> None:
        """Check that `b @ a` exists."""
        if self.b.ndim != 2 or self.a.ndim != 2 or self.b.shape[1] != self.a.shape[0]:
            raise AdapterError(
                f"factors do not multiply: b is {tuple(self.b.shape)}, a is {tuple(self.a.shape)}; "
                "expected (out, rank) and (rank, in)"
            )
        if self.b.dtype != self.a.dtype or self.b.device != self.a.device:
            raise AdapterError(
                f"factors differ: b is {self.b.dtype} on {self.b.device}, "
                f"a is {self.a.dtype} on {self.a.device}"
            )

    @property
    def rank(self) -> int:
        """Inner size of the product."""
        return self.b.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of the update."""
        return self.b.shape[0], self.a.shape[1]

    def with_scale(self, scale: float) -> "Factors":
        """The same update under another scale, the ratio absorbed into `b`.

        Both factors become float64 where the scale changes: in the dtype of a half-precision
        factor, or even in float32, the product with the ratio would be rounded.
        """
        if scale == self.scale:
            return self
        return Factors(self.b.double() * (self.scale / scale), self.a.double(), scale)

    def padded(self, rank: int) -> "Factors":
        """The same update at a larger rank: zero columns in `b`, zero rows in `a`."""
        extra = rank - self.rank
        if extra == 0:
            return self
        return Factors(F.pad(self.b, (0, extra)), F.pad(self.a, (0, 0, 0, extra)), self.scale)

    def matrix(self) -> Tensor:
        """The update as a dense float64 (out, in) matrix: the slow, obvious reference."""
        return self.scale * (self.b.double() @ self.a.double())


@dataclass(frozen=True, eq=False)
class Adapter:
    """Factors of every target module, and the parameters that are trained in full.

    Attributes:
        factors: by module name in the base model, e.g. `model.layers.0.self_attn.q_proj`.
        full: by parameter name in the base model, e.g. `score.weight` (a classification head).
    """

    factors: Mapping[str, Factors]
    full: Mapping[str, Tensor] = field(default_factory=dict)
