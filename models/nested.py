"""One frozen linear layer that serves several widths from one store.

A weight is a byte. Its first 4 bits name a cell of its group's 4-bit grid, its last 4 a place in
that cell; so any prefix of the byte, read as the centre of the bin that it leaves open, is a model
of that width, and a node keeps no more of the byte than it uses. The grid is laid out for 4 bits
(see `quantizers`), which is why the prefix is as good as a 4-bit model of its own.

What learning adds to a frozen weight cannot go into codes: a residual is a hundredth of a cell and
rounds away. It goes into a float side path beside the product, y = W_q x + U (V x), or, where it
is constant within groups (pooled adapters), into an offset per group, exactly.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlora.adapters import AdapterError, ModelError, Residual

from .unpacking import unpack

WIDTHS = (8, 4, 3, 2)
STORED = (8, 4)  # bits that a store may keep of each code; 3 and 2 are read from 4
STORE = ("codes", "scale", "zero")
BUFFERS = (*STORE, "offset", "side_u", "side_v")
# Centre of a prefix's bin, in cells of the 4-bit grid, from the value of the prefix itself.
CENTRE = {8: -7.5 / 16, 4: 0.0, 3: 0.5, 2: 1.5}


class NestedLinear(nn.Linear):
    """y = W x + U (V x) + bias, with W read at `bits` from a store of `max_bits`.

    Everything is frozen. Buffers, all of which keep their dtype when the model is cast:
        codes: uint8 (out, groups, group) if `max_bits` is 8. If it is 4, (out, groups, group / 2):
            byte j of a group holds the cell of weight j in its low half, and that of weight
            j + group / 2 in its high half.
        scale: float16 (out, groups), the width of a cell of the 4-bit grid.
        zero: float16 (out, groups), the weight at the centre of cell 0.
        offset: float32 (out, groups) or None, added to every weight of the group.
        side_u, side_v: float32 (out, q) and (q, in), or None. A dense side path is U alone.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor
    offset: Tensor | None
    side_u: Tensor | None
    side_v: Tensor | None

    def __init__(
        self,
        codes: Tensor,
        scale: Tensor,
        zero: Tensor,
        group: int,
        bias: nn.Parameter | None = None,
    ) -> None:
        """Hold a store, as `quantizers` makes it.

        Args:
            codes: as above; their shape says how many bits are stored.
            scale: as above.
            zero: as above.
            group: weights that share a scale, an even number.
            bias: (out,), or None.
        """
        nn.Module.__init__(self)  # nn.Linear's own would make the weight that we do without
        self.out_features, groups = scale.shape
        self.group, self.in_features = group, groups * group
        for name, tensor in zip(BUFFERS, (codes, scale, zero, None, None, None), strict=True):
            self.register_buffer(name, tensor)
        self.register_parameter("bias", bias)
        if bias is not None:
            bias.requires_grad_(False)
        self._bits = self.max_bits

    @property
    def max_bits(self) -> int:
        """Bits that are stored of each weight: 8 or 4."""
        return 8 if self.codes.shape[-1] == self.group else 4

    @property
    def bits(self) -> int:
        """The width that the layer computes at: 8, 4, 3 or 2, and at most `max_bits`.

        Raises:
            ModelError: when set to another.
        """
        return self._bits

    @bits.setter
    def bits(self, bits: int) -> None:
        self._bits = self._checked(bits)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """No weight, but what PEFT asks one for: dtype and device. Any other use is refused."""
        return torch.empty(0, device=self.scale.device).as_subclass(_Probe)

    def dense(self, bits: int | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight (out, in) at a width, its own by default: with offsets, without side path.

        Computed in float32, the same bytes from a store of 8 bits and of 4; then cast.

        Raises:
            ModelError: if the store has no such width.
        """
        bits = self._checked(self._bits if bits is None else bits)
        scale = self.scale.float()
        base = self.zero.float()
        if CENTRE[bits]:
            base = base + CENTRE[bits] * scale
        if self.offset is not None:
            base = base + self.offset
        step = scale / 16 if self.max_bits == 8 else scale
        weight = unpack(self.codes, self.group, _mask(bits, self.max_bits), step, base)
        return weight.view(self.out_features, self.in_features).to(dtype)

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        x = input
        y: Tensor = _Product.apply(x, self, self._bits)  # type: ignore[no-untyped-call]
        if self.side_u is not None:
            inner = x if self.side_v is None else F.linear(x, self.side_v.to(x.dtype))
            y = y + F.linear(inner, self.side_u.to(x.dtype))
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def set_side(self, residual: Residual | None) -> None:
        """Replace the side path by a copy of `residual`, in float32; None takes it away.

        Raises:
            AdapterError: if it is not (out, in).
        """
        if residual is not None and residual.shape != (self.out_features, self.in_features):
            raise AdapterError(
                f"a side path of {residual.shape} does not fit a layer of (out, in) = "
                f"{(self.out_features, self.in_features)}"
            )
        u, v = (None, None) if residual is None else (residual.u, residual.v)
        self.side_u, self.side_v = self._kept(u), self._kept(v)

    def set_offset(self, offset: Tensor | None) -> None:
        """Replace the offsets by a copy, in float32; None takes them away.

        Args:
            offset: (out, groups), added to every weight of its group.

        Raises:
            AdapterError: if it has another shape.
        """
        if offset is not None and offset.shape != self.scale.shape:
            raise AdapterError(
                f"offsets are {tuple(offset.shape)}, expected (out, groups) = "
                f"{tuple(self.scale.shape)}"
            )
        self.offset = self._kept(offset)

    def truncated(self, max_bits: int) -> "NestedLinear":
        """A layer of its own that stores `max_bits`: 8, or 4 at half the bytes.

        Raises:
            ModelError: if this store has fewer.
        """
        if max_bits not in STORED or max_bits > self.max_bits:
            raise ModelError(
                f"cannot keep {max_bits} bits of a store of {self.max_bits}: expected one of "
                f"{[bits for bits in STORED if bits <= self.max_bits]}"
            )
        codes = self.codes.clone() if max_bits == self.max_bits else packed(self.codes)
        bias = None if self.bias is None else nn.Parameter(self.bias.detach().clone())
        layer = NestedLinear(codes, self.scale.clone(), self.zero.clone(), self.group, bias)
        layer.offset = self._kept(self.offset)
        layer.side_u, layer.side_v = self._kept(self.side_u), self._kept(self.side_v)
        layer._bits = min(self._bits, max_bits)
        return layer.train(self.training)

    @property
    def store_bytes(self) -> int:
        """Bytes of codes, scales and zeros, without offset, side path and bias."""
        return self.codes.nbytes + self.scale.nbytes + self.zero.nbytes

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, bits={self.bits} of {self.max_bits}, "
            f"group={self.group}"
        )

    def _checked(self, bits: int) -> int:
        if bits not in WIDTHS or bits > self.max_bits:
            held = [width for width in WIDTHS if width <= self.max_bits]
            raise ModelError(f"this layer has no width of {bits!r} bits: its store has {held}")
        return bits

    def _kept(self, tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        return tensor.detach().to(self.scale.device, torch.float32, copy=True).contiguous()

    def _apply(self, fn: Any, recurse: bool = True) -> "NestedLinear":
        """Move, but never cast: bfloat16 scales or offsets would be another model."""

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Make room for what a state dict has and this layer has not, and the other way round."""
        for name in BUFFERS[len(STORE) :]:
            found, own = state_dict.get(prefix + name), getattr(self, name)
            if found is None:
                setattr(self, name, None)
            elif own is None or own.shape != found.shape:
                setattr(self, name, self.scale.new_empty(found.shape, dtype=torch.float32))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class _Product(torch.autograd.Function):
    """x W^T that reads W anew for the gradient, so that no dense weight waits for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: NestedLinear, bits: int) -> Tensor:
        ctx.layer, ctx.bits = layer, bits
        return F.linear(x, layer.dense(bits, x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        return gradient @ ctx.layer.dense(ctx.bits, gradient.dtype), None, None


class _Probe(Tensor):
    """A tensor that tells its dtype and device and refuses to be read, written or merged into."""

    ASKED = frozenset({"is_floating_point", "is_complex", "size", "dim", "numel", "element_size"})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked = getattr(func, "__self__", None)  # of a getter: the attribute
        harmless = func.__name__ == "__get__" and asked not in (Tensor.data, Tensor.grad)
        if harmless or func.__name__ in cls.ASKED:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        raise AdapterError(
            "a quantized layer has no weight to read, fold or merge into: what is added would be "
            "rounded away. Keep it beside the codes (`set_side`, `set_offset`), or merge into the "
            "float32 base"
        )


def packed(codes: Tensor) -> Tensor:
    """The 4-bit prefixes of bytes (out, groups, group), two a byte as `NestedLinear` has them."""
    low, high = codes.chunk(2, dim=-1)
    return (low >> 4) | (high & 0xF0)


def _mask(bits: int, stored: int) -> int:
    """The bits of a stored code that belong to its prefix."""
    return (1 << stored) - (1 << (stored - bits))
