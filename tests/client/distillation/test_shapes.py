"""Shapes of students, and that what is counted is what is built."""

import itertools

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
)

from fedlora.adapters import ModelError
from fedlora.client.distillation.layout import Layout, StudentShape, layout_of
from fedlora.client.distillation.shapes import shape_for, student_config

from .families import FAMILIES, SIZES

SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> PretrainedConfig:
    return FAMILIES[request.param]()


def built(config: PretrainedConfig) -> int:
    """Parameters of a model that transformers makes of a configuration."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def layout(config: PretrainedConfig) -> Layout:
    with torch.device("meta"):
        return layout_of(AutoModelForCausalLM.from_config(config))


def test_the_count_is_that_of_the_model_that_is_built(family: PretrainedConfig) -> None:
    found = layout(family)
    assert found.parameters(found.shape) == built(family)
    for layers, hidden, groups, ffn in itertools.product((1, 4), (24, 48), (1, 2), (16, 48)):
        shape = StudentShape(layers, hidden, groups, ffn)
        student = student_config(family, shape, range(layers))
        assert found.parameters(shape) == built(student)
        assert layout(student).shape == shape


def test_smollm2_at_four_tenths() -> None:
    whole = built(SMOLLM2)
    shape = shape_for(SMOLLM2, round(0.4 * whole))
    count = built(student_config(SMOLLM2, shape, range(shape.layers)))
    assert count == pytest.approx(0.4 * whole, rel=0.01)
    assert count == pytest.approx(54e6, rel=0.02)
    kept = (shape.layers / 30, shape.hidden / 576, shape.groups / 3, shape.ffn / 1536)
    assert max(kept) / min(kept) < 1.2
    assert shape.hidden % 32 == shape.ffn % 32 == 0


@pytest.mark.parametrize("ratio", [0.2, 0.3, 0.5, 0.7, 0.9])
def test_other_ratios_come_near(ratio: float) -> None:
    found = layout(SMOLLM2)
    target = round(ratio * found.parameters(found.shape))
    assert found.parameters(shape_for(SMOLLM2, target)) == pytest.approx(target, rel=0.02)


def test_the_whole_is_its_own_shape(family: PretrainedConfig) -> None:
    assert shape_for(family, built(family)) == StudentShape(4, 48, 3, 64)


def test_a_shape_is_told_in_words() -> None:
    assert "21 layers, hidden width 384" in str(StudentShape(21, 384, 2, 1024))


@pytest.mark.parametrize("target", [0, 100, 10_000_000])
def test_sizes_out_of_reach_are_refused_with_the_range(target: int) -> None:
    with pytest.raises(ModelError, match=r"no student of .* at the least"):
        shape_for(LlamaConfig(**SIZES), target)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GPT2Config(n_embd=32, n_layer=1, n_head=2), "it has transformer"),
        (BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2), "it has"),
        (MixtralConfig(**SIZES, num_local_experts=2), "it has"),
        (GemmaConfig(**SIZES, head_dim=8), "scaled in a way of their own"),
    ],
)
def test_other_layouts_are_refused_with_a_way_out(config: PretrainedConfig, reason: str) -> None:
    with pytest.raises(ModelError, match=rf"(?s){reason}.*--student MODEL.*--student lora"):
        shape_for(config, 1000)
