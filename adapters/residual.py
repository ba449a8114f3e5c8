"""The residual: what averaging LoRA factors loses, to be added to the frozen weights.

Kept as two thin factors while they are smaller than the dense matrix, dense beyond. The scale of
the adapter is already inside: a fold adds the matrix as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import AdapterError


@dataclass(frozen=True, eq=False)
class Residual:
    """An (out, in) matrix `u @ v`, or `u` itself where `v` is None.

    Attributes:
        u: (out, q), or the dense (out, in) matrix.
        v: (q, in), or None.
    """

    u: Tensor
    v: Tensor | None = None

    def __post_init__(self) -> None:
        """Check that the matrix exists."""
        if self.u.ndim != 2 or (
            self.v is not None and (self.v.ndim != 2 or self.u.shape[1] != self.v.shape[0])
        ):
            raise AdapterError(
                f"residual factors do not multiply: u is {tuple(self.u.shape)}, "
                f"v is {None if self.v is None else tuple(self.v.shape)}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return self.u.shape[0], (self.u if self.v is None else self.v).shape[1]

    @property
    def rank(self) -> int:
        """Inner size of the factors; the smaller side where dense."""
        return min(self.shape) if self.v is None else self.u.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes to send."""
        return self.u.nbytes + (0 if self.v is None else self.v.nbytes)

    def matrix(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The dense (out, in) matrix, multiplied out in `dtype`."""
        return self.u.to(dtype) if self.v is None else self.u.to(dtype) @ self.v.to(dtype)

    def apply(self, x: Tensor) -> Tensor:
        """The product with `x` (in, p), as (out, p) in the dtype of `x`; never a dense matrix."""
        u = self.u.to(x.dtype)
        return u @ x if self.v is None else u @ (self.v.to(x.dtype) @ x)

    def smaller_form(self) -> "Residual":
        """Factors or dense, whichever has fewer numbers."""
        out, inner = self.shape
        if self.v is None or self.rank * (out + inner) < out * inner:
            return self
        return Residual(self.matrix().to(self.u.dtype))

    def recompressed(self, rank: int | None = None) -> tuple["Residual", float]:
        """The same matrix by its own singular vectors, cut to `rank` if given.

        The result depends on the product alone, so that no node's factors stand in it as they
        are, and directions that cancelled are gone. Thin QR of both factors and the SVD of a
        q x q core; the cut is the best one of its rank (Eckart and Young, 1936).

        Returns:
            The residual, and the share of its squared Frobenius norm that was dropped (0 to 1).
        """
        dtype = self.u.dtype
        if self.v is None:
            left, values, right = torch.linalg.svd(self.u.double(), full_matrices=False)
        else:
            q_u, r_u = torch.linalg.qr(self.u.double())
            q_v, r_v = torch.linalg.qr(self.v.double().T)
            left, values, right = torch.linalg.svd(r_u @ r_v.T)
            left, right = q_u @ left, right @ q_v.T
        floor = values[:1] * torch.finfo(dtype).eps
        kept = int((values > floor).sum()) if rank is None else min(rank, len(values))
        energy = values.square()
        dropped = float(energy[kept:].sum() / energy.sum()) if energy.sum() > 0 else 0.0
        root = values[:kept].sqrt()
        u, v = left[:, :kept] * root, root[:, None] * right[:kept]
        return Residual(u.to(dtype).contiguous(), v.to(dtype).contiguous()), dropped


def add(residuals: Sequence[Residual]) -> Residual:
    """The sum of residuals of one module: stacked factors, or dense where that is smaller.

    Raises:
        AdapterError: if there is none, or their shapes differ.
    """
    if not residuals or len({residual.shape for residual in residuals}) != 1:
        shapes = [residual.shape for residual in residuals]
        raise AdapterError(f"residuals to add need one common shape, got {shapes}")
    if any(residual.v is None for residual in residuals):
        total = sum((residual.matrix() for residual in residuals[1:]), residuals[0].matrix())
        return Residual(total.to(residuals[0].u.dtype))
    stacked = Residual(
        torch.cat([residual.u for residual in residuals], dim=1),
        torch.cat([residual.v for residual in residuals if residual.v is not None], dim=0),
    )
    return stacked.smaller_form()
