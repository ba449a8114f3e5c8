"""Opening a base whose linear layers come from a store, without ever holding them in float.

`load_base` and `quantize` pass through the float32 model: four bytes a weight, if only for a
moment. A node that was chosen for its small memory has its store made once (or is sent it), and
opens that with the few tensors that stay in float: embeddings, norms, biases.
"""

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from fedlora.adapters import ModelError
from fedlora.recipes.schema import ModelSection

from .loading import empty_base, head_modules
from .source import weight_files
from .store import load_store


def load_quantized(
    folder: Path, model: ModelSection, store: Path, device: str | torch.device = "cpu"
) -> PreTrainedModel:
    """The base of `load_base`, quantized as `store` was, in evaluation mode.

    A classifier's new head is zero; the adapter brings its values.

    Args:
        folder: as `source.resolve` returns it.
        model: the task, and the labels of a classifier.
        store: as `save_store` wrote it.
        device: where the layers shall lie.

    Raises:
        ModelError: if the store is of another model, or the folder lacks a tensor under the name
            that the model has for it (transformers renames some); `load_base` and `quantize` then
            do the same with more memory.
    """
    base = empty_base(folder, model)
    load_store(base, store)
    wanted = {name: tensor for name, tensor in base.state_dict().items() if tensor.is_meta}
    found = _read(folder, wanted, base.base_model_prefix)
    heads = tuple(f"{name}." for name in head_modules(base, model))
    tied = set(base.all_tied_weights_keys)
    for name in sorted(set(wanted) - set(found) - tied):
        if not name.startswith(heads) or not heads:
            raise ModelError(
                f"{folder} has no tensor {name}; open the model with `load_base` and quantize it"
            )
        found[name] = torch.zeros(wanted[name].shape)
    base.load_state_dict(found, strict=False, assign=True)
    base.tie_weights()
    _compute_buffers(base)
    return base.to(device).eval()


def _read(folder: Path, wanted: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The wanted tensors in float32, in memory of their own."""
    found = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118  # it is no dict
                for name in (key, f"{prefix}.{key}", key.removeprefix(f"{prefix}.")):
                    if name in wanted and tensors.get_slice(key).get_shape() == list(
                        wanted[name].shape
                    ):
                        found[name] = tensors.get_tensor(key).to(torch.float32, copy=True)
                        break
    return found


def _compute_buffers(base: PreTrainedModel) -> None:
    """Give values to buffers that no file holds, e.g. rotary frequencies, as transformers does."""
    for module in base.modules():
        empty = [name for name, buffer in _buffers(module).items() if buffer.is_meta]
        for name in empty:
            setattr(module, name, torch.empty_like(_buffers(module)[name], device="cpu"))
        if empty:
            with torch.no_grad():
                base._init_weights(module)


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_buffers(recurse=False))
