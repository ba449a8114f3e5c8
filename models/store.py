"""A quantized base on disk: the nested layers of a model in one safetensors file."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from fedlora.adapters import ModelError

from .nested import BUFFERS, STORE, NestedLinear
from .quantizers import nested_layers, replace

FORMAT = {"format": "fedlora-nested-1"}


def save_store(model: nn.Module, path: Path) -> None:
    """Write codes, scales, zeros, and what offsets and side paths there are; the same bytes always.

    Everything else of the model stays in the base's own files.
    """
    tensors = {
        f"{name}.{buffer}": getattr(layer, buffer).detach().cpu().contiguous()
        for name, layer in nested_layers(model).items()
        for buffer in BUFFERS
        if getattr(layer, buffer) is not None
    }
    save_file(tensors, path, FORMAT)


def load_store(base: PreTrainedModel, path: Path) -> None:
    """Put the layers of a store in the place of the base's, which may be on the meta device.

    They come out at their full width, on the device of the modules that they replace; biases stay.

    Raises:
        ModelError: if the file is no store, or of another model.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the quantized base {path}: {error}") from None
    names = sorted({key.rpartition(".")[0] for key in tensors})
    if not names:
        raise ModelError(f"{path} holds no quantized layers")
    layers = {name: _layer(base, name, tensors, path) for name in names}
    for name, layer in layers.items():
        replace(base, name, layer)


def _layer(base: nn.Module, name: str, tensors: dict[str, Tensor], path: Path) -> NestedLinear:
    found = {buffer: tensors.get(f"{name}.{buffer}") for buffer in BUFFERS}
    codes, scale, zero = (found[buffer] for buffer in STORE)
    if codes is None or scale is None or zero is None or codes.ndim != 3 or scale.ndim != 2:
        raise ModelError(f"{path} is no store of quantized layers: {name} is incomplete")
    try:
        linear = base.get_submodule(name)
    except AttributeError:
        linear = None
    if not isinstance(linear, nn.Linear):
        raise ModelError(f"{path} is of another model: {type(base).__name__} has no linear {name}")
    groups = scale.shape[1]
    if scale.shape[0] != linear.out_features or linear.in_features % groups:
        raise ModelError(
            f"{path} is of another model: its {name} has {scale.shape[0]} outputs in {groups} "
            f"groups, expected {linear.out_features} outputs of {linear.in_features} inputs"
        )
    group = linear.in_features // groups
    if codes.shape[2] not in (group, group // 2) or codes.dtype != torch.uint8:
        raise ModelError(f"{path}: the codes of {name} are not of 8 or 4 bits")
    device = (linear.scale if isinstance(linear, NestedLinear) else linear.weight).device
    layer = NestedLinear(codes, scale, zero, group, linear.bias)
    layer.offset, layer.side_u, layer.side_v = (found[buffer] for buffer in BUFFERS[len(STORE) :])
    return layer if device.type == "meta" else layer.to(device)
