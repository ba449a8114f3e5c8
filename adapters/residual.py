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

    @property
    def transposed(self) -> "Residual":
        """The transposed matrix, sharing memory."""
        return Residual(self.u.T) if self.v is None else Residual(self.v.T, self.u.T)

    def recompressed(
        self, rank: int | None = None, consume: bool = False
    ) -> tuple["Residual", float]:
        """The same matrix by its own singular vectors, cut to `rank` if given.

        The result depends (but for signs) on the product alone, so that no node's factors stand
        in it as they are, and directions that cancelled are gone. The cut is the best one of its
        rank (Eckart and Young, 1936).

        With v v^T = K K^T, an orthonormal V = K^-1 v, and (u K)^T (u K) = W S^2 W^T, the matrix is
        (u K W) (W^T V): two q x q eigenproblems instead of two QR of tall matrices. Gram matrices
        square the singular values, which is harmless since they are float64 and factors float32:
        only directions below 5e-8 of a factor's largest are lost.

        Args:
            rank: the most that the result may have; what the matrix has if not given.
            consume: give up this residual, whose memory the result may take.

        Returns:
            The residual, and the share of its squared Frobenius norm that was dropped (0 to 1).
        """
        out, inner = self.shape
        if self.v is None:
            eye = torch.eye(min(out, inner), dtype=self.u.dtype, device=self.u.device)
            u, v = (eye, self.u) if out <= inner else (self.u, eye)
        else:
            u, v = self.u, self.v
        left, right, dropped = _singular(u, v, rank)
        reuse = consume and self.v is not None and len(right) == self.rank
        made_u = u if reuse else u.new_empty(out, len(right))
        made_v = v if reuse else v.new_empty(len(right), inner)
        _multiply(left.T, u.T, made_u.T)
        _multiply(right, v, made_v)
        return Residual(made_u, made_v), dropped


CHUNK = 256  # columns in float64 at a time, so that the memory is that of the result


def _gram(wide: Tensor) -> Tensor:
    """`wide @ wide.T` of a (q, n) matrix, in float64."""
    gram = wide.new_zeros(len(wide), len(wide), dtype=torch.float64)
    for part in wide.split(CHUNK, dim=1):
        double = part.double()
        gram.addmm_(double, double.T)
    return gram


def _singular(u: Tensor, v: Tensor, rank: int | None) -> tuple[Tensor, Tensor, float]:
    """The q x p and p x q matrices that turn u and v into the factors, and the share dropped."""
    lengths, vectors = _eigh(_gram(v))
    k = vectors * lengths.sqrt()
    energy, w = _eigh(k.T @ _gram(u.T) @ k)
    kept = int((energy > energy[:1] * torch.finfo(u.dtype).eps ** 2).sum())
    kept = kept if rank is None else min(rank, kept)
    dropped = float(energy[kept:].sum() / energy.sum()) if kept else 0.0
    root = energy[:kept] ** 0.25  # each factor takes half of every singular value
    left = k @ w[:, :kept] / root
    return left, (vectors / lengths.sqrt() @ w[:, :kept] * root).T, dropped


def _eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues above rounding noise, largest first, and their eigenvectors as columns."""
    values, vectors = torch.linalg.eigh(gram)
    kept = int((values > values[-1:] * 8 * torch.finfo(gram.dtype).eps).sum())
    return values.flip(0)[:kept], vectors.flip(1)[:, :kept]


def _multiply(mix: Tensor, wide: Tensor, into: Tensor) -> None:
    """`mix @ wide` of a (q, n) matrix, computed in float64 and rounded once."""
    for part, made in zip(wide.split(CHUNK, dim=1), into.split(CHUNK, dim=1), strict=True):
        made.copy_(mix @ part.double())


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
