"""Generation against a loop that takes the likeliest token."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from fedlora.client.inference import answered, generate
from fedlora.models.examples import encode_prompt

PROMPTS = ["Which key?", "The ferry to the island leaves at seven", "x"]


@pytest.fixture
def model(tiny_causal: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny_causal)


@torch.no_grad()
def slow(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: str, data_format: str
) -> str:
    """One prompt, no cache, no padding."""
    ids = encode_prompt(tokenizer, prompt, data_format)
    start = len(ids)
    while len(ids) < start + 12 and ids[-1] != tokenizer.eos_token_id:
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return str(tokenizer.decode(ids[start:], skip_special_tokens=True)).strip()


@pytest.mark.parametrize("data_format", ["instruction", "text"])
def test_greedy_is_the_slow_loop(
    model: PreTrainedModel,
    tiny_tokenizer: PreTrainedTokenizerFast,
    data_format: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = [slow(model.eval(), tiny_tokenizer, prompt, data_format) for prompt in PROMPTS]
    assert len(set(expected)) == 3
    found = generate(model.train(), tiny_tokenizer, PROMPTS, 12, data_format=data_format)
    assert found == expected
    assert model.training
    monkeypatch.setattr("fedlora.client.inference.answers.BATCH", 2)
    assert generate(model, tiny_tokenizer, PROMPTS, 12, data_format=data_format) == expected


def test_it_stops_at_the_end_token(
    model: PreTrainedModel, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    (text,) = generate(model, tiny_tokenizer, ["x"], 12)
    first = tiny_tokenizer(text)["input_ids"][0]
    model.generation_config.eos_token_id = [first]
    assert generate(model, tiny_tokenizer, ["x"], 12) == [tiny_tokenizer.decode([first]).strip()]


def test_sampling_defaults_of_the_model_change_nothing(
    model: PreTrainedModel,
    tiny_tokenizer: PreTrainedTokenizerFast,
    capfd: pytest.CaptureFixture[str],
) -> None:
    expected = generate(model, tiny_tokenizer, PROMPTS, 12)
    model.generation_config.update(do_sample=True, temperature=5.0, top_k=3, top_p=0.5)
    assert generate(model, tiny_tokenizer, PROMPTS, 12) == expected
    assert capfd.readouterr().err == ""


def test_drawing_is_seeded(model: PreTrainedModel, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    before = torch.get_rng_state()
    drawn = [generate(model, tiny_tokenizer, PROMPTS, 12, 1.0, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != generate(model, tiny_tokenizer, PROMPTS, 12)
    assert torch.equal(before, torch.get_rng_state())


def test_answered() -> None:
    assert answered("It leaves at SEVEN.", ["seven", "7"])
    assert answered("At 7 o'clock", ["seven", "7"])
    assert not answered("At 17 o'clock", ["seven", "7"])
    assert answered("It costs €5 (five)", ["€5"])
    assert not answered("", ["seven"])
    assert answered("In der Straße", ["STRASSE"])
