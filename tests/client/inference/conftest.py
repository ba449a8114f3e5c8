"""Tiny random models of several families."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY = 120
BODY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
WINDOW = 16
GPT2 = GPT2Config(
    vocab_size=VOCABULARY,
    n_positions=256,
    n_embd=32,
    n_layer=3,
    n_head=4,
    initializer_range=0.3,
    eos_token_id=None,
)
MAKERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**BODY, tie_word_embeddings=True)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**BODY, sliding_window=WINDOW)),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**BODY, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2)
    ),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**BODY, head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8)
    ),
    "mamba": lambda: MambaForCausalLM(
        MambaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            state_size=4,
            num_hidden_layers=2,
            initializer_range=0.3,
            eos_token_id=None,
        )
    ),
    "lfm2": lambda: Lfm2ForCausalLM(
        Lfm2Config(**BODY, layer_types=["conv", "full_attention", "conv", "full_attention"])
    ),
    "bloom": lambda: BloomForCausalLM(
        BloomConfig(
            vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3
        )
    ),
}
TREES = ("llama", "gpt2", "mistral", "qwen2", "gemma2")  # families that verify draft trees
REFUSED = ("mamba", "lfm2", "bloom")


def tiny(family: str) -> Any:
    """A model of a family with weights that are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return MAKERS[family]().eval()


@pytest.fixture(params=TREES)
def model(request: pytest.FixtureRequest) -> Any:
    return tiny(request.param)


@pytest.fixture
def llama() -> Any:
    return tiny("llama")
