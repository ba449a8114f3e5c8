"""The A of a group-pooled adapter: a linear map of the means of groups of inputs (QA-LoRA).

PEFT has `use_qalora`, but ignores it on ordinary layers without a word; here A itself does the
pooling, inside PEFT's own LoRA layer. See `fedlora.adapters.pooling` for the algebra.
"""

from typing import cast

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from fedlora.adapters import ModelError


class PooledLinear(nn.Linear):
    """y = W mean(x over groups): weight (out, in/group) for inputs (..., in)."""

    def __init__(self, inputs: int, outputs: int, group: int, device: torch.device) -> None:
        """Without values; they are to be written."""
        super().__init__(inputs // group, outputs, bias=False, device=device)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return super().forward(x.unflatten(-1, (-1, self.group)).mean(-1))


def pool(name: str, layer: LoraLayer, adapter: str, group: int) -> None:
    """Let the layer's A see the mean of each group of inputs.

    Raises:
        ModelError: if the layer's inputs don't divide into groups.
    """
    plain = cast(nn.Linear, layer.lora_A[adapter])
    if plain.in_features % group:
        raise ModelError(
            f"{name} has {plain.in_features} inputs, which don't divide into groups of {group}; "
            "choose another lora.group, or kind plain"
        )
    device = plain.weight.device
    layer.lora_A[adapter] = PooledLinear(plain.in_features, plain.out_features, group, device)


def group_of(layer: LoraLayer, adapter: str) -> int:
    """Inputs that the layer's A sees as one."""
    a = layer.lora_A[adapter]
    return a.group if isinstance(a, PooledLinear) else 1
