"""Evaluation against one example at a time."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from fedlora.adapters.errors import DataError
from fedlora.models.evaluation import evaluate
from fedlora.models.examples import IGNORED, Example
from fedlora.models.loading import load_base
from fedlora.recipes.schema import ModelSection

TEXTS = [(1, 40, 50, 60, 70, 2), (1, 9, 2), (1, 33, 44, 55, 2), (1, 8, 7, 6, 5, 4, 3, 2)]
EXAMPLES = [Example(ids, (IGNORED, IGNORED, *ids[2:])) for ids in TEXTS]


def test_a_language_model(tiny_causal: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_causal).train()
    losses, right = [], 0
    model.eval()
    with torch.no_grad():
        for ids in TEXTS:
            logits = model(input_ids=torch.tensor([ids])).logits[0]
            for position in range(2, len(ids)):
                losses.append(F.cross_entropy(logits[position - 1], torch.tensor(ids[position])))
                right += int(logits[position - 1].argmax() == ids[position])
    model.train()
    for size in (1, 3, 8):
        report = evaluate(model, EXAMPLES, size)
        assert model.training
        assert (report.tokens, report.examples) == (14, 4)
        assert report.accuracy == right / 14
        assert report.loss == pytest.approx(float(sum(losses)) / 14, rel=1e-5)


def test_a_classifier(tiny_bert: Path) -> None:
    section = ModelSection(source="x", task="sequence-classification", labels=("a", "b", "c"))
    model = load_base(tiny_bert, section)
    examples = [Example(ids, number % 3) for number, ids in enumerate(TEXTS)]
    with torch.no_grad():
        logits = torch.cat([model(input_ids=torch.tensor([ids])).logits for ids in TEXTS])
    classes = torch.tensor([0, 1, 2, 0])
    report = evaluate(model, examples, 3)
    assert report.loss == pytest.approx(F.cross_entropy(logits, classes).item(), rel=1e-5)
    assert report.accuracy == (logits.argmax(1) == classes).double().mean()
    assert (report.tokens, report.examples) == (4, 4)
    assert not model.training


def test_no_examples(tiny_causal: Path) -> None:
    with pytest.raises(DataError, match="at least one example"):
        evaluate(AutoModelForCausalLM.from_pretrained(tiny_causal), [], 4)
