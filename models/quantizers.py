"""From a float32 model to one whose linear layers are nested codes, in place.

Three ways to choose the codes, none of which is random, so that parties who start from one base
arrive at one store (`store_fingerprint` tells):

- rtn: round to nearest, bin by bin. Elementwise arithmetic only: the same bytes on any machine.
- hqq: a grid that is moved to fit at 4 bits, without data. Better at 4 bits, seconds for 135M.
- gptq: fitted to the layers' inputs on a calibration text. Best at 4 bits.

hqq and gptq sum floats, whose last bit depends on the processor: one party quantizes, and the
others get its store.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Literal, cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fedlora.adapters import ModelError

from .gptq import gptq
from .grids import Grid, half_quadratic, round_to_nearest
from .nested import STORED, NestedLinear, packed

Method = Literal["rtn", "hqq", "gptq"]
TOKENS = 1024  # whose products are summed in float32
GRIDS: dict[str, Callable[[Tensor], Grid]] = {"rtn": round_to_nearest, "hqq": half_quadratic}


def quantize(
    base: PreTrainedModel,
    names: Sequence[str],
    method: Method,
    group: int = 64,
    max_bits: int = 8,
    calibration: Tensor | None = None,
) -> None:
    """Replace linear layers of `base` by nested ones, in place; their biases stay in float.

    Args:
        base: in float32, in evaluation mode.
        names: of nn.Linear modules.
        method: how to choose codes and grids.
        group: weights of a row that share a scale and a zero; a multiple of 4.
        max_bits: what to store of each code, 8 or 4.
        calibration: token ids (n, length), without padding; for gptq, which needs them.

    Raises:
        ModelError: if a module can't be quantized (it is no nn.Linear, the output layer, or of a
            width that the group does not divide), or `method`, `group`, `max_bits` or
            `calibration` are not as above; nothing has changed then. If the calibration text does
            not reach a module, the model is spent.
    """
    if max_bits not in STORED or group < 4 or group % 4:
        raise ModelError(
            f"cannot store {max_bits} bits in groups of {group}: expected 8 or 4 bits, and a "
            "group that is a multiple of 4"
        )
    if method not in ("rtn", "hqq", "gptq"):
        raise ModelError(f"unknown method {method!r}: expected rtn, hqq or gptq")
    check_names(base, names, group)
    if method == "gptq":
        if calibration is None or calibration.ndim != 2:
            raise ModelError("gptq needs a calibration text: token ids of shape (n, length)")
        _calibrated(base, names, group, max_bits, calibration)
    else:
        for name in names:
            linear = cast(nn.Linear, base.get_submodule(name))
            weight = linear.weight.detach().float().view(len(linear.weight), -1, group)
            grid = GRIDS[method](weight)
            replace(base, name, _nested(linear, grid.codes(weight), grid, group, max_bits))
    _own(base)


def check_names(base: PreTrainedModel, names: Sequence[str], group: int) -> None:
    """Check that modules can be quantized in groups of so many weights.

    Raises:
        ModelError: naming the first that can't.
    """
    for name in names:
        _check(base, name, group)


def store_fingerprint(base: nn.Module, bits: int | None = None) -> str:
    """SHA-256 over the codes, scales and zeros of all nested layers, in order of name.

    Offsets and side paths, which change with every round, do not count.

    Args:
        base: a model with nested layers.
        bits: 4 for the prefix alone, which is the same for a store of 8 bits and its truncation;
            by default what is stored.

    Returns:
        64 hexadecimal digits.
    """
    total = hashlib.sha256()
    for name, layer in nested_layers(base).items():
        codes = packed(layer.codes) if bits == 4 and layer.max_bits == 8 else layer.codes
        for part, tensor in {"codes": codes, "scale": layer.scale, "zero": layer.zero}.items():
            header = json.dumps([name, part, str(tensor.dtype), list(tensor.shape)]).encode()
            total.update(len(header).to_bytes(8, "little") + header)
            total.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return total.hexdigest()


def nested_layers(model: nn.Module) -> dict[str, NestedLinear]:
    """The nested layers of a base model, PEFT's wrapper around it or not, by name, sorted."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    found = {
        name.removesuffix(".base_layer"): module
        for name, module in base.named_modules()
        if isinstance(module, NestedLinear)
    }
    return dict(sorted(found.items()))


def replace(base: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a quantized layer in the place of the module of that name."""
    parent, _, leaf = name.rpartition(".")
    layer.train(base.get_submodule(name).training)
    setattr(base.get_submodule(parent), leaf, layer)


def _own(base: nn.Module) -> None:
    """Copy what stays in float: it may be part of the base's file, mapped into memory as a whole,
    and as long as one tensor is, all of it counts.
    """
    for parameter in base.parameters():
        parameter.data = parameter.data.clone()


def _nested(
    linear: nn.Linear, codes: Tensor, grid: Grid, group: int, max_bits: int
) -> NestedLinear:
    """The layer of codes (out, groups, group), still in float."""
    stored = codes.to(torch.uint8)
    return NestedLinear(
        stored if max_bits == 8 else packed(stored),
        grid.scale.squeeze(-1).half(),
        grid.zero.squeeze(-1).half(),
        group,
        linear.bias,
    )


def _calibrated(
    base: PreTrainedModel, names: Sequence[str], group: int, max_bits: int, calibration: Tensor
) -> None:
    """GPTQ in one forward pass: each layer is replaced when the text reaches it.

    So every layer is fitted to inputs that come through the quantized layers before it.
    """
    made: dict[str, NestedLinear] = {}

    def quantized(name: str) -> Callable[[nn.Linear, tuple[Tensor, ...], Tensor], Tensor]:
        def arrive(linear: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if name not in made:
                hessian = _hessian(inputs[0].reshape(-1, linear.in_features))
                codes, grid = gptq(linear.weight.detach().float(), hessian, group)
                made[name] = _nested(linear, codes, grid, group, max_bits)
                made[name].bits = 4
            return cast(Tensor, made[name](inputs[0]))

        return arrive

    hooks = [base.get_submodule(name).register_forward_hook(quantized(name)) for name in names]
    try:
        with torch.no_grad():
            base.base_model(input_ids=calibration.to(base.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    if missed := sorted(set(names) - set(made)):
        raise ModelError(f"the calibration text never reaches {missed[0]}: it can't be fitted")
    for name, layer in made.items():
        layer.bits = max_bits
        replace(base, name, layer)


def _hessian(inputs: Tensor) -> Tensor:
    """The sum of x x^T over inputs (n, in), in float64; the products are of float32."""
    total: Tensor = inputs.new_zeros(inputs.shape[1], inputs.shape[1], dtype=torch.float64)
    for part in inputs.float().split(TOKENS):
        total.add_(part.T @ part)
    return total


def _check(base: PreTrainedModel, name: str, group: int) -> None:
    try:
        module = base.get_submodule(name)
    except AttributeError:
        raise ModelError(f"{type(base).__name__} has no module {name} to quantize") from None
    if module is base.get_output_embeddings() or module is base.get_input_embeddings():
        raise ModelError(f"{name} maps to or from the vocabulary and stays in float; leave it out")
    if isinstance(module, Conv1D):
        raise ModelError(
            f"{name} is a Conv1D, which stores its weight transposed (GPT-2); only nn.Linear can "
            "be quantized: use a model of another architecture, or float32"
        )
    if not isinstance(module, nn.Linear) or isinstance(module, NestedLinear):
        raise ModelError(f"{name} is a {type(module).__name__}, expected nn.Linear in float")
    if module.in_features % group:
        raise ModelError(
            f"{name} has {module.in_features} inputs, which groups of {group} do not divide; "
            "choose another group size"
        )
