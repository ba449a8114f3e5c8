"""Tiny models of families that can be pruned, and texts for them."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from fedlora.models.examples import IGNORED, Example

SIZES = {
    "vocab_size": 120,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "llama, tied": lambda: LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama, biases": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "mistral": lambda: MistralConfig(**SIZES, head_dim=8, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
    "smollm3": lambda: SmolLM3Config(**SIZES, no_rope_layer_interval=2),
}


def random_model(config: PretrainedConfig) -> PreTrainedModel:
    """Norms and biases are not what they begin as, either."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model: Any = AutoModelForCausalLM.from_config(config).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data.add_(torch.rand_like(parameter), alpha=0.3)
    return model


def texts(vocabulary: int = 120, count: int = 5, seed: int = 3) -> list[Example]:
    draw = torch.Generator().manual_seed(seed)
    examples = []
    for number in range(count):
        ids = tuple(torch.randint(3, vocabulary, (8 + number,), generator=draw).tolist())
        examples.append(Example(ids, (IGNORED, *ids[1:])))
    return examples
