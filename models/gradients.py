"""Can this base be trained through? A base that quantizes activations, or swaps in an inference
kernel after its first evaluation, looks like any other and passes no gradients: the loss falls a
little, by the last layers alone, and nobody is told.

A frozen linear layer is linear: for any x and d, the gradient of <y, W d> at x, multiplied by d,
is |W d|^2. So each layer is asked for both sides, after an evaluation and in training mode.
"""

from typing import cast

import torch
from peft import PeftModel
from torch import Tensor, nn

from fedlora.adapters import ModelError

from .lora import lora_layers

ROWS = 4
TOLERANCE = 0.1  # relative; a dead layer errs by 1, bfloat16 by a hundredth


def check_gradients(model: PeftModel) -> None:
    """Check that gradients pass every layer below the adapter.

    Costs about one forward and backward pass of four tokens; leaves the model as it was.

    Raises:
        ModelError: naming the first layer through which they don't.
    """
    for name, layer in lora_layers(model).items():
        base = layer.get_base_layer()
        error = _gradient_error(base, layer.in_features)
        if not error <= TOLERANCE:
            raise ModelError(
                f"gradients do not pass {name} ({type(base).__name__}): they are wrong by "
                f"{100 * error:.0f} %, so that an adapter can't learn on this base. It quantizes "
                "activations or uses kernels for inference only; use float32, bfloat16 or "
                "fedlora's own quantization"
            )


def _gradient_error(base: nn.Module, inner: int) -> float:
    """The relative error of a layer's gradient along a random direction."""
    draw = torch.Generator().manual_seed(0)
    weight = cast(Tensor, base.weight)
    dtype = weight.dtype if weight.dtype.is_floating_point else torch.float32
    x, d = torch.randn(2, ROWS, inner, generator=draw).to(weight.device, dtype)
    was_training = base.training
    with torch.no_grad():
        base.eval()
        moved = (base(x + d) - base(x)).float()  # W d
    base.train()
    try:
        with torch.enable_grad():
            gradient = _gradient(base, x.requires_grad_(), moved)
    finally:
        base.train(was_training)
    expected = moved.square().sum().item()
    return abs((gradient * d.float()).sum().item() / expected - 1) if expected else 0.0


def _gradient(base: nn.Module, x: Tensor, pull: Tensor) -> Tensor:
    y = base(x).float()
    if not y.requires_grad:
        return torch.zeros_like(x, dtype=torch.float32)
    (gradient,) = torch.autograd.grad((y * pull).sum(), x, allow_unused=True)
    return torch.zeros_like(x, dtype=torch.float32) if gradient is None else gradient.float()
