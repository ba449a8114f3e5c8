"""Folding: adding a residual to a frozen weight, in the orientation in which it is stored.

Only float32 (and float64, for the algebra) can take it. A residual is about 1e-4 of its weight, so
bfloat16, float16 and every integer format round most of it away; there it must stay beside.
"""

import torch
from torch import Tensor

from .errors import AdapterError
from .residual import Residual

FOLDABLE = (torch.float32, torch.float64)


def fold(weight: Tensor, residual: Residual, fan_in_fan_out: bool) -> None:
    """Add `residual` to `weight` in place, in the weight's dtype and without a dense residual.

    The product's rounding is to the residual what float32 is to its numbers, so to the weight it
    is a thousandth of the rounding of the sum.

    Args:
        weight: (out, in), or (in, out) where `fan_in_fan_out` (GPT-2's Conv1D).
        residual: an (out, in) matrix.
        fan_in_fan_out: whether the module stores its weight transposed.

    Raises:
        AdapterError: if the weight cannot hold the residual: wrong dtype or shape.
    """
    if weight.dtype not in FOLDABLE:
        raise AdapterError(
            f"cannot fold a residual into {weight.dtype}: it would be rounded away; load the base "
            "in float32, or keep the residual beside the weight"
        )
    stored = tuple(reversed(weight.shape)) if fan_in_fan_out else tuple(weight.shape)
    if stored != residual.shape:
        raise AdapterError(
            f"residual of shape {residual.shape} does not fit a weight of (out, in) = {stored}"
        )
    added = residual.transposed if fan_in_fan_out else residual
    u = added.u.to(weight.device, weight.dtype)
    with torch.no_grad():
        if added.v is None:
            weight.add_(u)
        else:
            weight.addmm_(u, added.v.to(weight.device, weight.dtype))
