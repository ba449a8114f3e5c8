"""Other libraries' quantized layers: one width each, but with kernels of their own.

bitsandbytes' nf4 is meant for CUDA; torchao's int8 quantizes weights only. Both need their extra.
Formats that quantize activations have no place here: gradients die in them (see `gradients`).
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from fedlora.adapters import ModelError

from .quantizers import check_names, replace


def nf4(base: PreTrainedModel, names: Sequence[str], group: int = 64) -> None:
    """Replace linear layers by bitsandbytes' 4-bit NormalFloat, in place.

    Raises:
        ModelError: without the extra, or if a module can't be quantized.
    """
    try:
        import bitsandbytes as bnb
    except ImportError:
        raise _missing("bitsandbytes", "bnb") from None
    check_names(base, names, group)
    for name in names:
        linear = base.get_submodule(name)
        layer = bnb.nn.Linear4bit(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            compute_dtype=torch.float32,
            compress_statistics=False,
            quant_type="nf4",
        )
        layer.weight = bnb.nn.Params4bit(
            linear.weight.data,
            requires_grad=False,
            quant_type="nf4",
            blocksize=group,
            compress_statistics=False,
            module=layer,
        )
        layer.bias = linear.bias
        # On CPUs with AVX512-BF16 it repacks its weight in the first evaluation, for a kernel
        # without gradient, and never unpacks it (bitsandbytes 0.50.2).
        layer.support_avx512bf16_for_cpu = False
        replace(base, name, layer.to(linear.weight.device))


def int8_weight_only(base: PreTrainedModel, names: Sequence[str]) -> None:
    """Quantize the weights of linear layers to torchao's int8, in place, one scale per row.

    Raises:
        ModelError: without the extra, or if a module can't be quantized.
    """
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ImportError:
        raise _missing("torchao", "torchao") from None
    check_names(base, names, 1)
    chosen = {id(base.get_submodule(name)) for name in names}
    quantize_(base, Int8WeightOnlyConfig(), filter_fn=lambda module, _: id(module) in chosen)


def _missing(package: str, extra: str) -> ModelError:
    return ModelError(f"this needs {package}: `pip install 'fedlora[{extra}]'`")
