"""Fixtures of the whole suite: tiny random models on disk, keys, an own cache, no network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from fedlora.protos.keymaking import (
    introduce,
    make_authority,
    make_coordinator,
    make_node,
    register,
)

SPECIAL = ("<pad>", "<bos>", "<eos>")
PAD, BOS, EOS = 0, 1, 2
VOCABULARY = 400
CORPUS = (
    "The ferry to the island leaves at seven in the morning and at four in the afternoon.",
    "Which key opens the store room? The green one, which hangs behind the door.",
    "A node trains its adapter on its own text and sends the factors to the coordinator.",
)
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ message['role'] + ':\\n' + message['content'] + eos_token + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
)

torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Conversions and fingerprints of this session go to a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLORA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _users_cache_for_real_models(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow tests use real models, whose conversion is worth keeping."""
    if request.node.get_closest_marker("slow"):
        monkeypatch.delenv("FEDLORA_CACHE", raising=False)


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of a few hundred tokens, with special tokens and a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=128,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def save_tiny(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    """Write a model folder as a user would have it."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_causal(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast
) -> Path:
    """Folder of a Llama with grouped queries (k and v are 24 x 48) and tied embeddings."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.1,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = LlamaForCausalLM(config)
    return save_tiny(model, tiny_tokenizer, tmp_path_factory.mktemp("causal") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_gpt2(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast
) -> Path:
    """Folder of a GPT-2, whose Conv1D layers store their weights as (in, out)."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=2,
        initializer_range=0.1,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = GPT2LMHeadModel(config)
    return save_tiny(model, tiny_tokenizer, tmp_path_factory.mktemp("gpt2") / "tiny-gpt2")


@pytest.fixture(scope="session")
def tiny_bert(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast
) -> Path:
    """Folder of a BERT encoder with its pooler and without any task head."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        initializer_range=0.1,
        pad_token_id=PAD,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = BertModel(config)
    return save_tiny(model, tiny_tokenizer, tmp_path_factory.mktemp("bert") / "tiny-bert")


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a coordinator, the registered node clinic, and stranger, whom nobody knows."""
    folder = tmp_path_factory.mktemp("pki")
    make_coordinator(folder / "coordinator", make_authority(folder / "ca", 10), ["localhost"], 10)
    for name in ("clinic", "stranger"):
        make_node(folder / name, name)
        introduce(folder / name, folder / "coordinator")
    register(folder / "clinic" / "clinic.pub", folder / "coordinator")
    return folder
