"""A quantized base from the cache is the one that was quantized in place."""

from pathlib import Path

import pytest
import torch

from fedlora.adapters import ModelError
from fedlora.models.loading import load_base
from fedlora.models.quantized_base import open_quantized, quantized_base, targets
from fedlora.models.quantizers import quantize, store_fingerprint
from fedlora.recipes.schema import LoraSection, ModelSection, QuantizeSection

LORA, RTN = LoraSection(rank=2), QuantizeSection(method="rtn", group=8)
CAUSAL = ModelSection(source="tiny")
CLASSIFIER = ModelSection(source="tiny", task="sequence-classification", labels=("no", "yes"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLORA_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(("fixture", "bits"), [("tiny_causal", 3), ("tiny_bert", 8)])
def test_it_is_the_same_model(fixture: str, bits: int, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(fixture)
    model = CLASSIFIER if "bert" in fixture else CAUSAL
    place = quantized_base(folder, model, LORA, RTN, bits)
    opened = open_quantized(place, folder, model)
    base = load_base(folder, model)
    quantize(base, sorted(targets(folder, model, LORA)), "rtn", 8, 4 if bits < 8 else 8)
    assert store_fingerprint(opened) == store_fingerprint(base)
    ids = torch.arange(3, 27).view(2, 12)
    assert torch.equal(opened(ids).logits, base(ids).logits)
    assert not opened.training
    assert not any(tensor.is_meta for tensor in (*opened.parameters(), *opened.buffers()))
    if model is CAUSAL:
        assert opened.lm_head.weight is opened.get_input_embeddings().weight
        written = (place / "layers.safetensors").stat().st_mtime_ns
        assert quantized_base(folder, model, LORA, RTN, 4) == place  # 3 bits are read from 4
        assert (place / "layers.safetensors").stat().st_mtime_ns == written


def test_what_cannot_be_quantized_is_named(tiny_causal: Path) -> None:
    section = QuantizeSection(method="rtn", group=32)  # 48 and 80 inputs
    with pytest.raises(ModelError, match="groups of 32 do not divide"):
        quantized_base(tiny_causal, CAUSAL, LORA, section, 8)
