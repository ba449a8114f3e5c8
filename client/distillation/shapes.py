"""The shape of a student of a given size: all axes kept about equally.

So it was with MiniMA-3B (Zhang et al., ACL 2025), cut from LLaMA2-7B: three quarters of the
layers, the heads, the hidden width and the feed-forward's neurons.
"""

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from fedlora.adapters import ModelError
from fedlora.models.quiet import quiet

from .layout import Layout, StudentShape, head_width, layout_of

MULTIPLE = 32  # of widths, for matrix kernels
CLOSE = 0.01  # of the target: among shapes so near, the most even one is taken
PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers")  # lists in configurations


def shape_for(config: PretrainedConfig, target_parameters: int) -> StudentShape:
    """The shape of a student with about so many parameters.

    Of the shapes within 1 % of the target, the one whose four axes are kept most equally; if there
    is none, the nearest. Widths are multiples of 32, or of the largest power of two in the
    teacher's width, and the hidden width one of the number of heads, as transformers demands.

    Args:
        config: the teacher's.
        target_parameters: tied embeddings counted once.

    Raises:
        ModelError: if the teacher can't be pruned, or not to that size.
    """
    layout = layout_of(_empty(config))
    whole = layout.parameters(layout.shape)
    smallest = layout.parameters(_smallest(layout))
    if not smallest <= target_parameters <= whole:
        raise ModelError(
            f"no student of {target_parameters:,} parameters can be cut from this teacher: it has "
            f"{whole:,}, and {smallest:,} at the least; choose a size or ratio between"
        )

    def order(shape: StudentShape) -> tuple[bool, float, float]:
        off = abs(layout.parameters(shape) / target_parameters - 1)
        spread = _spread(shape, layout.shape)
        return (False, spread, off) if off <= CLOSE else (True, off, spread)

    return min(_shapes(layout, target_parameters), key=order)


def student_config(
    config: PretrainedConfig, shape: StudentShape, layers: Sequence[int]
) -> PretrainedConfig:
    """The student's configuration.

    Args:
        config: the teacher's.
        shape: the student's.
        layers: of the teacher, that the student keeps.

    Raises:
        ModelError: if transformers does not take it, e.g. a hidden width for this many heads.
    """
    content = config.to_dict()
    queries = config.num_attention_heads // config.num_key_value_heads
    changes = {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.groups * queries,
        "num_key_value_heads": shape.groups,
        "head_dim": head_width(config),
        "intermediate_size": shape.ffn,
        # Less is averaged over; see `pruning`.
        "rms_norm_eps": config.rms_norm_eps * (config.hidden_size / shape.hidden),
    }
    for name in PER_LAYER:
        if content.get(name):
            changes[name] = [content[name][layer] for layer in layers]
    try:
        student: PretrainedConfig = type(config).from_dict({**content, **changes})
    except Exception as error:  # transformers raises any type for what it finds wrong
        raise ModelError(f"a student of {shape} is not a valid model: {error}") from error
    return student


def _shapes(layout: Layout, target: int) -> Iterator[StudentShape]:
    """For each choice of the other axes, the feed-forward that comes nearest to the target."""
    whole, step = layout.shape, _step(layout.shape.ffn)
    for groups in range(1, whole.groups + 1):
        for hidden in _widths(layout, groups):
            for layers in range(1, whole.layers + 1):
                bare = layout.parameters(StudentShape(layers, hidden, groups, 0))
                one = layout.parameters(StudentShape(layers, hidden, groups, 1)) - bare
                wanted = step * round((target - bare) / one / step)
                yield StudentShape(layers, hidden, groups, min(max(step, wanted), whole.ffn))


def _widths(layout: Layout, groups: int) -> list[int]:
    """Hidden widths that go with a number of groups."""
    step = math.lcm(_step(layout.shape.hidden), groups * layout.queries)
    widths = list(range(step, layout.shape.hidden + 1, step))
    own = groups == layout.shape.groups and layout.shape.hidden not in widths
    return widths + [layout.shape.hidden] * own


def _smallest(layout: Layout) -> StudentShape:
    groups = next(g for g in range(1, layout.shape.groups + 1) if _widths(layout, g))
    return StudentShape(1, _widths(layout, groups)[0], groups, _step(layout.shape.ffn))


def _step(width: int) -> int:
    return math.gcd(width, MULTIPLE)


def _spread(shape: StudentShape, whole: StudentShape) -> float:
    """How unequally the axes are kept: the largest ratio to the smallest, in nats."""
    kept = [
        shape.layers / whole.layers,
        shape.hidden / whole.hidden,
        shape.groups / whole.groups,
        shape.ffn / whole.ffn,
    ]
    return math.log(max(kept) / min(kept))


def _empty(config: PretrainedConfig) -> PreTrainedModel:
    """The model on the meta device: names and shapes alone."""
    try:
        with quiet(), torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(deepcopy(config))
    except Exception as error:  # as above
        raise ModelError(
            f"no language model can be built of this configuration: {error}"
        ) from error
    return model
