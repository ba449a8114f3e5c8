"""Ways of multiplying by one weight on a processor, of which the fastest is taken.

oneDNN's kernels want the weight in their own order. torch reorders it at every call, which is what
makes a pass of four tokens cost twice one of a single token; here it is reordered once. These are
the operators that torch's own compiler emits; they are not public, so whoever uses a form checks
it first (`kernels`).
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Precision = Literal["bf16", "int8"]
Product = Callable[[Tensor], Tensor]  # (..., in) -> (..., out)
Form = Callable[[Tensor, Tensor | None], Product]  # of weight (out, in) and bias (out,)


def plain(weight: Tensor, bias: Tensor | None) -> Product:
    """torch's own."""
    return lambda x: functional.linear(x, weight, bias)


def packed(weight: Tensor, bias: Tensor | None) -> Product:
    """oneDNN, the weight in its order."""
    order = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    product = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: product(x, order, bias, "none", [], "")


def widened(weight: Tensor, bias: Tensor | None) -> Product:
    """A half-precision weight, multiplied in float32: for processors without half arithmetic."""
    inner = packed(weight.float(), None if bias is None else bias.float())
    return lambda x: inner(x.float()).to(x.dtype)


def halved(weight: Tensor, bias: Tensor | None) -> Product:
    """A float32 weight, rounded to bfloat16 and multiplied there."""
    inner = packed(weight.bfloat16(), None if bias is None else bias.bfloat16())
    return lambda x: inner(x.bfloat16()).to(x.dtype)


def halved_widened(weight: Tensor, bias: Tensor | None) -> Product:
    """The same values for processors without half arithmetic: products in float32."""
    rounded = weight.bfloat16().float()
    inner = packed(rounded, None if bias is None else bias.bfloat16().float())
    return lambda x: inner(x.bfloat16().float()).bfloat16().to(x.dtype)


def quantized(weight: Tensor, bias: Tensor | None) -> Product:
    """Weights in 8 bits for each output, activations in 8 bits for each token.

    Sums are of integers, so they do not depend on how many tokens are looked at together: at this
    precision there are no near ties but the exact ones.
    """
    codes, scales = rounded(weight.float())
    order = torch.ops.onednn.qlinear_prepack(codes, None)
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    product = torch.ops.onednn.qlinear_pointwise.default

    def multiply(x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1]).float()
        step = flat.abs().amax(1, keepdim=True).clamp_min_(1e-12).div_(127)
        bytes_ = (flat / step).round_().add_(128).to(torch.uint8)
        found: Tensor = product(
            bytes_, 1.0, 128, order, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        ).mul_(step)
        if bias is not None:
            found += bias
        return found.view(*x.shape[:-1], -1).to(x.dtype)

    return multiply


def quantized_slowly(weight: Tensor, bias: Tensor | None) -> Product:
    """The same values where there is no such kernel: integers, held as float64."""
    codes, scales = rounded(weight.float())
    wide = codes.double()

    def multiply(x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1]).float()
        step = flat.abs().amax(1, keepdim=True).clamp_min_(1e-12).div_(127)
        found = functional.linear((flat / step).round_().double(), wide).float() * scales * step
        if bias is not None:
            found += bias
        return found.view(*x.shape[:-1], -1).to(x.dtype)

    return multiply


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """8-bit codes of a weight (out, in), and the scale of each row."""
    scales = weight.abs().amax(1).clamp_min(1e-12) / 127
    return (weight / scales[:, None]).round().to(torch.int8), scales


def forms(dtype: torch.dtype, precision: Precision | None) -> tuple[Form, ...]:
    """The forms for layers of a type at a precision; the first is the reference for the others."""
    if precision == "int8":
        return (quantized_slowly, quantized)
    if precision == "bf16" and dtype == torch.float32:
        return (halved_widened, halved)
    if dtype == torch.float32:
        return (plain, packed)
    if dtype in (torch.bfloat16, torch.float16):
        return (plain, packed, widened)
    return (plain,)
