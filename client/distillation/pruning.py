"""A student cut out of its teacher: what matters least to the loss goes.

As MiniMA does it (Zhang et al., ACL 2025; after Michel et al., 2019, and Xia et al., 2022): each
head, neuron, hidden unit and layer gets a mask, 1 in the model as it is; its importance is
E|dL/dmask| over calibration text. No mask is ever made: at 1, the derivative is the product of an
activation and its gradient, and hooks read both.

The student computes what the teacher computes with all other masks at 0. For the hidden width that
takes a scale: RMSNorm divides by the mean square of all units, those at 0 included, so the
student's norms, which average over fewer, are weighted by sqrt(teacher's width / student's).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from fedlora.adapters import DataError, ModelError
from fedlora.models.batches import collate
from fedlora.models.examples import Example
from fedlora.models.losses import label_count, loss_sum, pad_id
from fedlora.models.quiet import quiet

from .layout import Axes, Axis, Layout, StudentShape, layout_of
from .shapes import student_config


@dataclass(frozen=True, eq=False)
class Importance:
    """How much the loss depends on each part; rows of a layer have the length 1.

    Attributes:
        layers: (layers,).
        hidden: (hidden,), of one mask for the whole residual stream.
        groups: (layers, groups), key-value heads with their query heads.
        ffn: (layers, ffn), neurons.
    """

    layers: Tensor
    hidden: Tensor
    groups: Tensor
    ffn: Tensor


def importance(model: PreTrainedModel, examples: Sequence[Example]) -> Importance:
    """Measure it on calibration examples, one forward and backward pass each.

    Not on examples that the model knows by heart: at a minimum, all derivatives vanish alike.

    Args:
        model: of the Llama layout, with float weights; left as it was.
        examples: of language modelling, a few dozen.

    Raises:
        DataError: without examples.
        ModelError: if the model can't be pruned.
    """
    if not examples:
        raise DataError("pruning needs at least one calibration example, found none")
    shape = layout_of(model).shape
    total = _zeros(shape)
    for example in examples:
        batch = collate([example], pad_id(model)).to(model.device)
        now = _zeros(shape)
        with _frozen(model), _watched(model, now):
            (loss_sum(model, batch) / label_count(batch)).backward()
        for name, derivative in vars(now).items():
            getattr(total, name).add_(derivative.abs() / len(examples))
    return Importance(
        layers=total.layers,
        hidden=total.hidden,
        groups=nn.functional.normalize(total.groups, dim=1),
        ffn=nn.functional.normalize(total.ffn, dim=1),
    )


def prune(model: PreTrainedModel, importance: Importance, shape: StudentShape) -> PreTrainedModel:
    """The student of a shape that keeps what is most important; the order of all parts stays.

    Args:
        model: the teacher, left as it is.
        importance: measured on it.
        shape: no larger than the teacher's.

    Returns:
        A model with tensors of its own, in evaluation mode, on the teacher's device.

    Raises:
        ModelError: if the model can't be pruned, or not to this shape.
    """
    layout = layout_of(model)
    for axis, size in vars(shape).items():
        whole = getattr(layout.shape, axis)
        if not 1 <= size <= whole:
            raise ModelError(f"a student can't have {axis} {size}: expected 1 to {whole}")
    layers = _best(importance.layers, shape.layers)
    config = student_config(model.config, shape, layers.tolist())
    with quiet(), init_empty_weights(include_buffers=False):
        student: Any = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    student.load_state_dict(_cut(model, importance, shape, layout), strict=False, assign=True)
    student.tie_weights()
    student.generation_config = deepcopy(model.generation_config)
    placed: PreTrainedModel = student.to(model.device).eval()
    return placed


def _cut(
    model: PreTrainedModel, importance: Importance, shape: StudentShape, layout: Layout
) -> dict[str, Tensor]:
    """The student's tensors by name."""
    source = dict(model.named_parameters())
    hidden = _best(importance.hidden, shape.hidden)
    scale = (layout.shape.hidden / shape.hidden) ** 0.5
    everything = {axis: torch.arange(size) for axis, size in layout.sizes(layout.shape).items()}

    def cut(name: str, axes: Axes, kept: dict[Axis, Tensor]) -> Tensor:
        tensor = source[name].detach()
        for dimension, axis in enumerate(axes):
            tensor = tensor.index_select(dimension, kept[axis].to(tensor.device))
        return tensor * scale if name.endswith("norm.weight") and axes == ("hidden",) else tensor

    kept: dict[Axis, Tensor] = {**everything, "hidden": hidden}
    tensors = {name: cut(name, axes, kept) for name, axes in layout.outer.items()}
    for new, old in enumerate(_best(importance.layers, shape.layers).tolist()):
        groups = _best(importance.groups[old], shape.groups)
        kept["keys"] = _blocks(groups, layout.head)
        kept["queries"] = _blocks(groups, layout.head * layout.queries)
        kept["ffn"] = _best(importance.ffn[old], shape.ffn)
        for name, axes in layout.inner.items():
            tensors[f"model.layers.{new}.{name}"] = cut(f"model.layers.{old}.{name}", axes, kept)
    return tensors


def _best(scores: Tensor, count: int) -> Tensor:
    """Places of the `count` largest, in their order."""
    return scores.sort(descending=True, stable=True).indices[:count].sort().values


def _blocks(numbers: Tensor, width: int) -> Tensor:
    """Places within blocks of a width, e.g. (0, 2) of width 3 -> (0, 1, 2, 6, 7, 8)."""
    return (numbers[:, None] * width + torch.arange(width)).flatten()


def _zeros(shape: StudentShape) -> Importance:
    return Importance(
        layers=torch.zeros(shape.layers),
        hidden=torch.zeros(shape.hidden),
        groups=torch.zeros(shape.layers, shape.groups),
        ffn=torch.zeros(shape.layers, shape.ffn),
    )


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, and no gradients for parameters: those of activations are enough."""
    was_training = model.training
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval().requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        model.train(was_training)
        for parameter in learned:
            parameter.requires_grad_(True)


@contextmanager
def _watched(model: PreTrainedModel, sums: Importance) -> Iterator[None]:
    """Add the derivatives by all masks to `sums` in the block's backward pass."""
    stem: Any = model.model
    handles = [stem.embed_tokens.register_forward_hook(_embedded(sums.hidden))]
    for number, layer in enumerate(stem.layers):
        handles += [layer.register_forward_hook(_changed(sums.layers[number : number + 1]))]
        for module, row in (
            (layer.self_attn.o_proj, sums.groups[number]),
            (layer.mlp.down_proj, sums.ffn[number]),
        ):
            handles += [
                module.register_forward_pre_hook(_entered(row)),
                module.register_forward_hook(_left(sums.hidden)),
            ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _embedded(row: Tensor) -> Any:
    """The embedding's output, where the graph begins."""

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        start = output.detach().requires_grad_()
        _observe(start, start, row)
        return start

    return hook


def _changed(row: Tensor) -> Any:
    """What a layer adds to its input."""

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        _observe(output, output - inputs[0], row)

    return hook


def _entered(row: Tensor) -> Any:
    """What a projection reads: (1, length, parts * width)."""

    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        _observe(inputs[0], inputs[0], row)

    return hook


def _left(row: Tensor) -> Any:
    """What a projection adds to the residual stream: (1, length, hidden)."""

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        _observe(output, output, row)

    return hook


def _observe(tensor: Tensor, masked: Tensor, row: Tensor) -> None:
    """Add sum(gradient * masked) over each of the row's parts, once the gradient is known."""
    value = masked.detach()

    def add(gradient: Tensor) -> None:
        parts = (gradient * value).float().sum(dim=(0, 1)).view(len(row), -1).sum(dim=1)
        row.add_(parts.to(row.device))

    tensor.register_hook(add)
