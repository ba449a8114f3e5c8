"""Group-pooled factors: A sees the mean of each group of inputs, so updates are constant in it.

For groups of g inputs let P (in/g, in) have 1/g where an input belongs to a group. A pooled
adapter adds s B A P with A of shape (rank, in/g). Means, residuals and receipts of B A are those of
B A P, so the algebra of this package needs to know nothing of it; only where an update meets a
weight it has to be spread over the inputs again.

Source: Xu et al., "QA-LoRA: Quantization-Aware Low-Rank Adaptation of Large Language Models",
arXiv 2309.14717, section 3.3: what is constant in a quantization group goes into its zero point.
"""

from torch import Tensor

from .factors import Adapter, Factors
from .residual import Residual


def spread(pooled: Tensor, group: int) -> Tensor:
    """`pooled @ P`: (n, in/g) to (n, in)."""
    return pooled.repeat_interleave(group, dim=1) / group


def spread_residual(residual: Residual, group: int) -> Residual:
    """The residual of the full weight; itself where the group is 1."""
    if group == 1:
        return residual
    if residual.v is None:
        return Residual(spread(residual.u, group))
    return Residual(residual.u, spread(residual.v, group))


def spread_adapter(adapter: Adapter, group: int) -> Adapter:
    """The same updates as plain factors; itself where the group is 1."""
    if group == 1:
        return adapter
    plain = {
        name: Factors(one.b, spread(one.a, group), one.scale)
        for name, one in adapter.factors.items()
    }
    return Adapter(plain, adapter.full)
