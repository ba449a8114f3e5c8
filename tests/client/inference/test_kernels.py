"""Replaced layers compute the same, and are given back."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from fedlora.client.inference import Decoder, Request, forms
from fedlora.client.inference.kernels import Kernels

from .conftest import tiny

IDS = torch.tensor([[5, 6, 7, 8, 9]])
PROMPT = [11, 5, 9, 5, 9, 7, 5]


class Nested(nn.Linear):
    """Stands for a layer whose `weight` is only made when asked for."""


def adapted(model: Any) -> Any:
    peft_model = get_peft_model(
        model, LoraConfig(r=3, target_modules=["q_proj", "v_proj", "down_proj"])
    )
    drawn = torch.Generator().manual_seed(0)
    for name, parameter in peft_model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(generator=drawn)
    return peft_model.eval()


def force(monkeypatch: pytest.MonkeyPatch, *allowed: Any) -> None:
    """Let only these forms be tried, whatever is fastest, the reference first."""
    monkeypatch.setattr("fedlora.client.inference.kernels.forms", lambda *_: allowed)
    monkeypatch.setattr(
        "fedlora.client.inference.kernels._seconds", lambda product, _: next(COUNTDOWN)
    )


COUNTDOWN = iter(range(10**6, 0, -1))


@pytest.mark.parametrize("with_adapter", [False, True])
@torch.inference_mode()
def test_packed_layers_compute_the_same_and_are_given_back(
    llama: Any, with_adapter: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = adapted(llama) if with_adapter else llama
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model(input_ids=IDS).logits
    force(monkeypatch, forms.plain, forms.packed)
    kernels = Kernels(llama)
    assert set(kernels.chosen.values()) == {"packed"}
    weights = {
        id(w): w for layer in llama.modules() if type(layer) is nn.Linear for w in [layer.weight]
    }
    assert with_adapter or kernels.nbytes == sum(w.nbytes for w in weights.values())
    found = model(input_ids=IDS).logits
    assert not torch.equal(found, expected)
    assert (found - expected).abs().max() <= 1e-4
    with kernels.paused():
        assert torch.equal(model(input_ids=IDS).logits, expected)
    kernels.close()
    assert torch.equal(model(input_ids=IDS).logits, expected)
    assert all("forward" not in vars(module) for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_adapted_model_is_decoded_with_its_adapter(llama: Any) -> None:
    model = adapted(llama)
    expected = model.generate(
        input_ids=torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False, pad_token_id=0
    )[0, len(PROMPT) :].tolist()
    with model.disable_adapter():
        without = model.generate(
            input_ids=torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False, pad_token_id=0
        )[0, len(PROMPT) :].tolist()
    assert expected != without
    with Decoder(model) as decoder:
        assert decoder.generate(PROMPT, Request(20)) == expected
    with model.disable_adapter(), Decoder(model) as decoder:
        assert decoder.generate(PROMPT, Request(20)) == without


@torch.inference_mode()
def test_layers_that_are_not_exactly_linear_are_left_alone(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, forms.plain, forms.packed)
    layer = llama.model.layers[0].self_attn
    nested = Nested(32, 16, bias=False)
    layer.k_proj = nested
    kernels = Kernels(llama)
    assert nested not in kernels._products
    assert layer.q_proj in kernels._products
    assert layer.v_proj in kernels._products
    kernels.close()


@torch.inference_mode()
def test_a_form_that_computes_something_else_is_not_taken(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(weight: torch.Tensor, bias: Any) -> forms.Product:
        return lambda x: forms.plain(weight, bias)(x) * 1.01

    def absent(weight: torch.Tensor, bias: Any) -> forms.Product:
        raise RuntimeError("no such kernel")

    force(monkeypatch, forms.plain, wrong, absent)
    kernels = Kernels(llama)
    assert set(kernels.chosen.values()) == {"plain"}
    assert not kernels._products


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [
        (torch.float32, None),
        (torch.float32, "bf16"),
        (torch.float32, "int8"),
        (torch.bfloat16, None),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_forms_of_a_precision_agree(dtype: torch.dtype, precision: Any, bias: bool) -> None:
    drawn = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 40, generator=drawn).to(dtype)
    shift = torch.randn(24, generator=drawn).to(dtype) if bias else None
    reference, *others = forms.forms(dtype, precision)
    exact = torch.nn.functional.linear
    for rows in (1, 2, 7):
        x = torch.randn(1, rows, 40, generator=drawn).to(dtype)
        expected = reference(weight, shift)(x)
        assert expected.dtype == dtype
        assert expected.shape == (1, rows, 24)
        scale = expected.abs().max()
        near = exact(x.float(), weight.float(), None if shift is None else shift.float())
        assert (expected.float() - near).abs().max() <= 0.03 * scale
        for form in others:
            try:
                found = form(weight, shift)(x)
            except RuntimeError:
                pytest.skip(f"no {form.__name__} on this processor")
            allowed = 1e-5 if dtype == torch.float32 and precision != "bf16" else 1e-2
            assert (found.float() - expected.float()).abs().max() <= allowed * scale


@torch.inference_mode()
def test_eight_bit_products_do_not_depend_on_their_company() -> None:
    drawn = torch.Generator().manual_seed(0)
    product = forms.quantized_slowly(torch.randn(24, 40, generator=drawn), None)
    x = torch.randn(9, 40, generator=drawn)
    together = product(x)
    assert all(torch.equal(product(x[row : row + 1])[0], together[row]) for row in range(9))


def test_int8_is_generated_from_alike(llama: Any) -> None:
    with Decoder(llama, precision="int8", tree="none") as decoder:
        expected = decoder.generate(PROMPT, Request(30))
    with Decoder(llama, precision="int8") as decoder:
        assert decoder.generate(PROMPT, Request(30)) == expected


@torch.inference_mode()
def test_layers_with_one_input_are_multiplied_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(weight: torch.Tensor, bias: Any) -> forms.Product:
        def product(x: torch.Tensor) -> torch.Tensor:
            calls.append(len(weight))
            return forms.plain(weight, bias)(x)

        return product

    force(monkeypatch, forms.plain, counted)
    model = tiny("llama")
    expected = model(input_ids=IDS).logits
    kernels = Kernels(model)
    calls.clear()
    assert torch.allclose(model(input_ids=IDS).logits, expected, atol=1e-5)
    assert calls == [32 + 16 + 16, 32, 48 + 48, 32] * 4 + [120]
    kernels.close()
