"""Models of one vocabulary, and examples for them."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from fedlora.adapters import Adapter, Factors
from fedlora.models.examples import IGNORED, Example
from fedlora.models.loading import load_base
from fedlora.models.lora import attach, read_adapter, write_adapter
from fedlora.recipes.schema import LoraSection, ModelSection

from ...conftest import VOCABULARY

SECTION = ModelSection(source="tiny")


def small(seed: int, hidden: int = 32, tied: bool = False) -> PreTrainedModel:
    """A Llama of the tiny tokenizer's vocabulary."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def adapted(base: PreTrainedModel, targets: tuple[str, ...] | str = "all-linear") -> PeftModel:
    """A head on a base: an adapter of rank 4 that does something."""
    lora = LoraSection.model_validate({"rank": 4, "alpha": 8, "targets": targets})
    model = attach(base, lora, SECTION)
    draw = torch.Generator().manual_seed(3)
    factors = {
        name: Factors(
            0.2 * torch.randn(one.b.shape, generator=draw),
            0.2 * torch.randn(one.a.shape, generator=draw),
            one.scale,
        )
        for name, one in read_adapter(model).factors.items()
    }
    write_adapter(model, Adapter(factors, {}))
    return model


@pytest.fixture
def head(tiny_causal: Path) -> PeftModel:
    """The tiny Llama with an adapter."""
    return adapted(load_base(tiny_causal, SECTION))


@pytest.fixture
def examples() -> list[Example]:
    """Sequences of unlike lengths with prompts of unlike lengths."""
    draw = torch.Generator().manual_seed(5)
    made = []
    for number in range(8):
        length, prompt = 8 + 2 * number, 2 + number // 2
        ids = tuple(torch.randint(3, VOCABULARY, (length,), generator=draw).tolist())
        made.append(Example(ids, (*[IGNORED] * prompt, *ids[prompt:])))
    return made
