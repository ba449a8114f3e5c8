"""The real model: the tree's logits, and strict texts against transformers' greedy ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from fedlora.client.inference import Decoder, Request
from fedlora.client.inference.answers import ends
from fedlora.client.inference.selftest import compare
from fedlora.models.examples import encode_prompt
from fedlora.models.loading import load_base, load_tokenizer
from fedlora.models.source import resolve
from fedlora.recipes.schema import ModelSection

pytestmark = [pytest.mark.slow, pytest.mark.timeout(6 * 3600)]
# Spec-Bench's questions do not come with this repository.
QUESTIONS = Path(__file__).resolve().parents[4] / "shared/data/spec_bench/question_even.jsonl"
OWN = (
    "When does the ferry leave, and who may board it first?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Repeat this sentence three times: the green key hangs behind the door.",
    "Translate into French: the ferry leaves at seven in the morning.",
)


@pytest.fixture(scope="module")
def smollm2() -> tuple[Any, PreTrainedTokenizerBase]:
    folder = resolve("smollm2-135m")
    return load_base(folder, ModelSection(source="smollm2-135m")), load_tokenizer(folder)


def identical(
    smollm2: tuple[Any, PreTrainedTokenizerBase], prompts: list[str], count: int
) -> list[str]:
    """The prompts whose text is another than transformers'."""
    model, tokenizer = smollm2
    request = Request(count, frozenset(ends(model, tokenizer)))
    wrong = []
    with Decoder(model, strict=True) as decoder:
        for prompt in prompts:
            ids = encode_prompt(tokenizer, prompt, "instruction")
            found = decoder.generate(ids, request)
            with decoder.kernels.paused(), torch.inference_mode():
                output = model.generate(
                    torch.tensor([ids]),
                    attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                    max_new_tokens=count,
                    do_sample=False,
                )
            if found != output[0, len(ids) :].tolist():
                wrong.append(prompt)
    return wrong


@torch.inference_mode()
def test_its_tree_is_its_branches(smollm2: tuple[Any, PreTrainedTokenizerBase]) -> None:
    assert compare(smollm2[0])[0] <= 1e-4


def test_strict_texts_are_greedy_texts(smollm2: tuple[Any, PreTrainedTokenizerBase]) -> None:
    assert identical(smollm2, list(OWN), 48) == []


@pytest.mark.skipif(not QUESTIONS.exists(), reason="needs Spec-Bench's question file")
def test_all_of_spec_bench_is_greedy(smollm2: tuple[Any, PreTrainedTokenizerBase]) -> None:
    rows = map(json.loads, QUESTIONS.read_text(encoding="utf-8").splitlines())
    assert identical(smollm2, [row["turns"][0] for row in rows], 128) == []
