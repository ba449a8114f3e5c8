"""Draft trees against transformers' own greedy decoding: the same tokens, whatever is drafted."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
)

from fedlora.adapters import Adapter, Factors, Residual
from fedlora.client.inference import Decoder, Request, Tables, recycling
from fedlora.client.inference.costs import Costs
from fedlora.client.inference.engine import Shape
from fedlora.models.lora import attach, initial_adapter, write_adapter
from fedlora.models.quantizers import nested_layers, quantize
from fedlora.models.subnet import Subnet, apply
from fedlora.recipes.schema import LoraSection, ModelSection

from .conftest import TREES, VOCABULARY, tiny

PROMPT = [11, 5, 9, 5, 9, 7, 5]


def greedy(model: Any, prompt: list[int], count: int, **more: Any) -> list[int]:
    output = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0, **more
    )
    return list(output[0, len(prompt) :].tolist())


def poisoned() -> Tables:
    """Tables full of nonsense."""
    drawn = np.random.default_rng(0)
    tables = Tables(VOCABULARY)
    tables.matrix.ids[:] = drawn.integers(0, VOCABULARY, tables.matrix.ids.shape)
    tables.matrix.chances[:] = drawn.random(tables.matrix.chances.shape)
    return tables


@pytest.mark.parametrize("shape", ["dynamic", "paper", "none"])
@pytest.mark.parametrize("family", TREES)
def test_greedy_is_transformers_greedy(family: str, shape: Shape) -> None:
    model = tiny(family)
    with Decoder(model, poisoned(), shape, strict=True) as decoder:
        for prompt in (PROMPT, PROMPT[:1], PROMPT * 5):
            found = decoder.generate(prompt, Request(40))
            account = decoder.account
            assert account.tokens == 40
            with decoder.kernels.paused():
                assert found == greedy(model, prompt, 40)
    assert (account.nodes > account.steps) == (shape != "none")


def test_it_drafts_with_success(llama: Any) -> None:
    with Decoder(llama) as decoder:
        first = decoder.generate(PROMPT, Request(40))
        assert decoder.generate(PROMPT, Request(40)) == first
        assert decoder.account.steps < 25


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_it_ends_where_it_is_told(llama: Any, count: int) -> None:
    expected = greedy(llama, PROMPT, 40)
    with Decoder(llama) as decoder:
        decoder.generate(PROMPT, Request(40))  # now whole paths will be accepted
        assert decoder.generate(PROMPT, Request(count)) == expected[:count]
        end = expected[count]
        stopped = expected[: expected.index(end) + 1]
        assert decoder.generate(PROMPT, Request(40, frozenset({end}))) == stopped
        pieces = list(decoder.stream(PROMPT, Request(40, frozenset({end}))))
        assert [token for piece in pieces for token in piece] == stopped


@pytest.mark.parametrize("shape", ["dynamic", "paper"])
def test_no_draft_goes_beyond_the_last_position(shape: Shape) -> None:
    """GPT-2 has as many positions as it was trained with, and fails at the next."""
    model = tiny("gpt2")
    room = model.config.n_positions - 40
    prompt = (PROMPT * 40)[:room]
    with Decoder(model, tree=shape, strict=True) as decoder:
        assert decoder.generate(prompt, Request(40)) == greedy(model, prompt, 40)


@pytest.mark.parametrize(
    "processor",
    [RepetitionPenaltyLogitsProcessor(1.5), NoRepeatNGramLogitsProcessor(2)],
    ids=["repetition", "ngram"],
)
def test_penalties_are_those_of_the_way_to_each_node(llama: Any, processor: Any) -> None:
    expected = greedy(llama, PROMPT, 30, logits_processor=[processor])
    assert expected != greedy(llama, PROMPT, 30)
    with Decoder(llama) as decoder:
        for _ in range(2):
            assert decoder.generate(PROMPT, Request(30, processors=[processor])) == expected


def test_a_stopping_criterion_holds_inside_a_path(llama: Any) -> None:
    class Seen(StoppingCriteria):
        def __init__(self, token: int) -> None:
            self.token = token

        def __call__(self, ids: torch.Tensor, scores: Any, **more: Any) -> Any:
            return torch.tensor([self.token in ids[0, len(PROMPT) :].tolist()])

    expected = greedy(llama, PROMPT, 40)
    rule = Seen(expected[9])
    with Decoder(llama) as decoder:
        decoder.generate(PROMPT, Request(40))
        found = decoder.generate(PROMPT, Request(40, stopping=[rule]))
    assert found == expected[: expected.index(expected[9]) + 1]


def test_transformers_generate_can_use_it(llama: Any) -> None:
    pieces: list[int] = []
    settings = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
    output = llama.generate(
        torch.tensor([PROMPT]),
        custom_generate=recycling,
        on_tokens=pieces.extend,
        max_new_tokens=20,
        do_sample=False,
        pad_token_id=0,
        **settings,
    )
    expected = greedy(llama, PROMPT, 20, **settings)
    assert output[0, len(PROMPT) :].tolist() == expected == pieces
    with pytest.raises(ValueError, match="one text at a time"):
        llama.generate(torch.tensor([PROMPT, PROMPT]), custom_generate=recycling, pad_token_id=0)


def test_strict_decides_near_ties_as_plain_decoding_does(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree's logits are disturbed; what is below the threshold has to be mended."""
    expected = greedy(llama, PROMPT, 30)
    with Decoder(llama, strict=True) as decoder:
        step = type(decoder._target).step
        drawn = torch.Generator().manual_seed(0)

        def noisy(self: Any, tree: Any) -> torch.Tensor:
            logits: torch.Tensor = step(self, tree)
            if self is not decoder._target:
                return logits
            return logits + torch.randn(logits.shape, generator=drawn)

        monkeypatch.setattr(type(decoder._target), "step", noisy)
        decoder._near = 12.0
        assert decoder.generate(PROMPT, Request(30)) == expected
        assert 0 < decoder.account.near_ties <= 30
        assert 0 < decoder.account.replayed <= 31
        decoder._plain = None
        assert decoder.generate(PROMPT, Request(30)) != expected


def test_where_drafts_do_not_pay_it_decodes_plainly(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device where each token of a pass costs as much as a pass of one."""
    observe = Costs.observe

    def dear(self: Costs, tokens: int, seconds: float, gained: int) -> None:
        observe(self, tokens, 0.01 * tokens**1.5, gained)

    monkeypatch.setattr(Costs, "observe", dear)
    with Decoder(llama, poisoned()) as decoder:
        assert decoder.generate(PROMPT, Request(60)) == greedy(llama, PROMPT, 60)
        assert decoder.account.nodes < 2.5 * decoder.account.steps


def test_tables_do_not_grow_over_ten_thousand_tokens(llama: Any) -> None:
    with Decoder(llama) as decoder:
        before = decoder.tables.nbytes
        total = 0
        while total < 10_000:
            prompt = [(total * 7 + n * n) % VOCABULARY for n in range(400)]
            total += len(prompt) + len(decoder.generate(prompt, Request(20)))
        assert decoder.tables.nbytes == before
    assert Tables(32_000).matrix.nbytes < 2e6


@pytest.mark.parametrize("bits", [pytest.param(8, marks=pytest.mark.slow), 4])
def test_a_quantized_head_is_generated_from_alike(bits: int) -> None:
    """Quantized weights, a side path and an adapter: the tokens of the very same model."""
    model = tiny("llama")
    names = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]
    quantize(model, names, "rtn", group=16)
    apply(model, Subnet.uniform(names, bits))
    generator = torch.Generator().manual_seed(2)
    for layer in nested_layers(model).values():
        u = 0.05 * torch.randn(layer.out_features, 2, generator=generator)
        layer.set_side(Residual(u, torch.randn(2, layer.in_features, generator=generator)))
    section = ModelSection(source="tiny")
    tuned = attach(model, LoraSection(rank=2), section)
    start = initial_adapter(tuned, seed=1)
    moved = {
        name: Factors(0.3 * torch.randn(one.b.shape, generator=generator), one.a, one.scale)
        for name, one in start.factors.items()
    }
    write_adapter(tuned, Adapter(moved))
    tuned.eval()
    expected = greedy(tuned, PROMPT, 40)
    with Decoder(tuned, poisoned(), strict=True) as decoder:
        assert decoder.refusal is None
        assert decoder.generate(PROMPT, Request(40)) == expected
        assert decoder.account.nodes > decoder.account.steps
    assert greedy(tuned, PROMPT, 40) == expected  # and the model is as it was
