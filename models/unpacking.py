"""Codes to floats: the cost of a quantized layer, since every forward and backward reads them anew.

On a CPU, FBGEMM's kernel for quantized embeddings does it in one pass, where tensor operations
take three: it turns rows of bytes that end in a float32 factor and summand into floats. Every
product of a code and a scale fits float32, so there is one rounding, and both ways give the same
bytes.
"""

from functools import cache

import torch
from torch import Tensor

TAIL = 8  # bytes at a row's end: float32 factor and summand


def unpack(codes: Tensor, group: int, mask: int, step: Tensor, base: Tensor) -> Tensor:
    """The weights `step * (code & mask) + base`, as float32 (out * groups, group).

    Args:
        codes: uint8 (out, groups, group), or of half that, two codes of 4 bits in a byte: the first
            half of a group in the low halves.
        group: weights in a group.
        mask: the bits of a code to use.
        step: float32 (out, groups).
        base: float32 (out, groups).
    """
    if codes.device.type == "cpu" and _kernel_works():
        return _by_kernel(codes, group, mask, step, base)
    return _by_operations(codes, group, mask, step, base)


def _by_operations(codes: Tensor, group: int, mask: int, step: Tensor, base: Tensor) -> Tensor:
    rows = step.numel()
    values = torch.empty(rows, group, dtype=torch.uint8, device=codes.device)
    _spread(codes.view(rows, -1), mask, values)
    return values.float().mul_(step.view(rows, 1)).add_(base.view(rows, 1))


def _by_kernel(codes: Tensor, group: int, mask: int, step: Tensor, base: Tensor) -> Tensor:
    rows = step.numel()
    values = torch.empty(rows, group + TAIL, dtype=torch.uint8)
    _spread(codes.view(rows, -1), mask, values[:, :group])
    values[:, group:].view(torch.float32).copy_(torch.stack((step, base), -1).view(rows, 2))
    unpacked: Tensor = torch.ops.quantized.embedding_bag_byte_unpack(values)
    return unpacked


def _spread(codes: Tensor, mask: int, into: Tensor) -> None:
    """The wanted bits of each code, one code a byte."""
    group = into.shape[1]
    if codes.shape[1] == group:
        torch.bitwise_and(codes, mask, out=into)
        return
    half = group // 2
    torch.bitwise_and(codes, mask, out=into[:, :half])
    torch.bitwise_right_shift(codes, 4, out=into[:, half:])
    if mask != 0x0F:
        into[:, half:].bitwise_and_(mask)


@cache
def _kernel_works() -> bool:
    """Whether this build of torch has the kernel, and it does what is said above."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(256, (3, 2, 16), dtype=torch.uint8, generator=generator)
    step, base = torch.rand(2, 3, 2, generator=generator).half().float()
    try:
        found = _by_kernel(codes, 16, 0xFF, step, base)
    except (AttributeError, RuntimeError):
        return False
    return torch.equal(found, _by_operations(codes, 16, 0xFF, step, base))
