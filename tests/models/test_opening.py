"""A base opened from its store is the one that was quantized in place."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from fedlora.adapters import ModelError
from fedlora.models.loading import load_base
from fedlora.models.opening import load_quantized
from fedlora.models.quantizers import quantize, store_fingerprint
from fedlora.models.store import save_store
from fedlora.recipes.schema import ModelSection

CAUSAL = ModelSection(source="tiny")
CLASSIFIER = ModelSection(source="tiny", task="sequence-classification", labels=["no", "yes"])


def made(folder: Path, model: ModelSection, store: Path) -> PreTrainedModel:
    base = load_base(folder, model)
    linear = (name for name, module in base.named_modules() if isinstance(module, nn.Linear))
    names = [name for name in linear if name not in ("lm_head", "score", "classifier")]
    quantize(base, names, "rtn", group=8)
    save_store(base, store)
    return base


@pytest.mark.parametrize("case", ["causal", "decoder as classifier", "encoder as classifier"])
def test_it_is_the_same_model(
    tiny_causal: Path, tiny_bert: Path, tmp_path: Path, case: str
) -> None:
    folder = tiny_bert if case.startswith("encoder") else tiny_causal
    model = CAUSAL if case == "causal" else CLASSIFIER
    base = made(folder, model, tmp_path / "store")
    opened = load_quantized(folder, model, tmp_path / "store")
    assert store_fingerprint(opened) == store_fingerprint(base)
    ids = torch.arange(3, 27).view(2, 12)
    if case == "causal":
        assert torch.equal(opened(ids).logits, base(ids).logits)
        assert opened.lm_head.weight is opened.get_input_embeddings().weight
    inside = [getattr(one, one.base_model_prefix)(ids)[0] for one in (opened, base)]
    assert torch.equal(*inside)
    assert not opened.training
    assert not any(tensor.is_meta for tensor in (*opened.parameters(), *opened.buffers()))


def test_a_store_of_another_model_is_refused(
    tiny_causal: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    made(tiny_causal, CAUSAL, tmp_path / "store")
    with pytest.raises(ModelError, match="of another model"):
        load_quantized(tiny_bert, CLASSIFIER, tmp_path / "store")
