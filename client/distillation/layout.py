"""Which tensors a model of the Llama layout has, and along which of its axes each can be cut.

One table says it all: that a model has this layout, how many parameters a student of a given shape
has, and how the student's tensors are cut from the teacher's. Llama, Mistral, Qwen2, Qwen3,
SmolLM3, Granite and others share it, whatever they are called.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from transformers import PretrainedConfig, PreTrainedModel

from fedlora.adapters import ModelError

Axis = Literal["vocabulary", "hidden", "queries", "keys", "head", "ffn"]
Axes = tuple[Axis, ...]

OUTER: Mapping[str, Axes] = {
    "model.embed_tokens.weight": ("vocabulary", "hidden"),
    "model.norm.weight": ("hidden",),
    "lm_head.weight": ("vocabulary", "hidden"),
}
INNER: Mapping[str, Axes] = {  # of each layer
    "input_layernorm.weight": ("hidden",),
    "self_attn.q_proj.weight": ("queries", "hidden"),
    "self_attn.q_proj.bias": ("queries",),
    "self_attn.q_norm.weight": ("head",),
    "self_attn.k_proj.weight": ("keys", "hidden"),
    "self_attn.k_proj.bias": ("keys",),
    "self_attn.k_norm.weight": ("head",),
    "self_attn.v_proj.weight": ("keys", "hidden"),
    "self_attn.v_proj.bias": ("keys",),
    "self_attn.o_proj.weight": ("hidden", "queries"),
    "self_attn.o_proj.bias": ("hidden",),
    "post_attention_layernorm.weight": ("hidden",),
    "mlp.gate_proj.weight": ("ffn", "hidden"),
    "mlp.gate_proj.bias": ("ffn",),
    "mlp.up_proj.weight": ("ffn", "hidden"),
    "mlp.up_proj.bias": ("ffn",),
    "mlp.down_proj.weight": ("hidden", "ffn"),
    "mlp.down_proj.bias": ("hidden",),
}
OPTIONAL = re.compile(r"lm_head\.weight|.*\.bias|self_attn\.[qk]_norm\.weight")
IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True)
class StudentShape:
    """The size of a model along the four axes that can be cut.

    Attributes:
        layers: decoder layers.
        hidden: width of the residual stream.
        groups: key-value heads of a layer, each with all query heads that it serves.
        ffn: neurons of a feed-forward.
    """

    layers: int
    hidden: int
    groups: int
    ffn: int

    def __str__(self) -> str:
        """As a person would say it."""
        return (
            f"{self.layers} layers, hidden width {self.hidden}, {self.groups} key-value head(s), "
            f"feed-forward {self.ffn}"
        )


@dataclass(frozen=True)
class Layout:
    """A model of this layout.

    Attributes:
        shape: the model's own.
        vocabulary: rows of the embedding.
        queries: query heads that share a key-value head.
        head: width of a head.
        outer: name and axes of the parameters that stand once; tied ones are there once.
        inner: likewise, within a layer.
    """

    shape: StudentShape
    vocabulary: int
    queries: int
    head: int
    outer: Mapping[str, Axes]
    inner: Mapping[str, Axes]

    def sizes(self, shape: StudentShape) -> Mapping[Axis, int]:
        """The length of each axis in a student."""
        keys = shape.groups * self.head
        return {
            "vocabulary": self.vocabulary,
            "hidden": shape.hidden,
            "queries": keys * self.queries,
            "keys": keys,
            "head": self.head,
            "ffn": shape.ffn,
        }

    def parameters(self, shape: StudentShape) -> int:
        """How many a student has."""
        sizes = self.sizes(shape)
        once = sum(math.prod(sizes[axis] for axis in axes) for axes in self.outer.values())
        layer = sum(math.prod(sizes[axis] for axis in axes) for axes in self.inner.values())
        return once + shape.layers * layer


def layout_of(model: PreTrainedModel) -> Layout:
    """Recognise a model by the names and shapes of its parameters.

    Args:
        model: on the meta device will do.

    Raises:
        ModelError: if it isn't of the Llama layout, or its layers differ in shape.
    """
    config = model.config
    found = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    layers: dict[int, set[str]] = {}
    outer: set[str] = set()
    for name in found:
        if match := IN_LAYER.fullmatch(name):
            layers.setdefault(int(match[1]), set()).add(match[2])
        else:
            outer.add(name)
    inner = layers.get(0, set())
    _require(config, outer, OUTER)
    for names in layers.values() or [inner]:
        _require(config, names, INNER)
        if names != inner:
            raise _refused(config, "its layers have different tensors")
    if "gemma" in config.model_type:  # the names are the same, what is done with them isn't
        raise _refused(config, "its norms and its embedding are scaled in a way of their own")
    heads, groups = int(config.num_attention_heads), int(config.num_key_value_heads)
    layout = Layout(
        shape=StudentShape(len(layers), int(config.hidden_size), groups, config.intermediate_size),
        vocabulary=int(config.vocab_size),
        queries=heads // groups,
        head=head_width(config),
        outer={name: OUTER[name] for name in OUTER if name in outer},
        inner={name: INNER[name] for name in INNER if name in inner},
    )
    sizes = layout.sizes(layout.shape)
    for name, shape in found.items():
        match = IN_LAYER.fullmatch(name)
        axes = INNER[match[2]] if match else OUTER[name]
        if shape != tuple(sizes[axis] for axis in axes):
            raise _refused(config, f"{name} has the shape {shape}")
    return layout


def head_width(config: PretrainedConfig) -> int:
    """Numbers in a query, key or value."""
    given = getattr(config, "head_dim", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def _require(config: PretrainedConfig, names: set[str], table: Mapping[str, Axes]) -> None:
    for name in sorted(names - set(table)):
        raise _refused(config, f"it has {name}")
    for name in table:
        if name not in names and not OPTIONAL.fullmatch(name):
            raise _refused(config, f"it lacks {name}")


def _refused(config: PretrainedConfig, reason: str) -> ModelError:
    return ModelError(
        f"a model of type {config.model_type} can't be pruned: {reason}. Pruned are models of the "
        "Llama layout with float weights (Llama, Mistral, Qwen2, Qwen3, SmolLM). Name a smaller "
        "model with the same tokenizer (--student MODEL), or train an adapter (--student lora)"
    )
