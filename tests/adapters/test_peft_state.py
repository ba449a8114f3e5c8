"""T8: PEFT state dicts in every key style that real PEFT models write."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model, get_peft_model_state_dict
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from fedlora.adapters import Adapter, AdapterError, Factors, exact_mean, from_peft, to_peft

RANK, ALPHA = 4, 12
SCALE = ALPHA / RANK
PREFIX = "base_model.model."


def fill(model: PeftModel) -> PeftModel:
    """Random values in every trained parameter: PEFT starts with B = 0."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture
def causal(tiny_causal: Path) -> PeftModel:
    base = AutoModelForCausalLM.from_pretrained(tiny_causal)
    return fill(
        get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear"))
    )


@pytest.fixture
def gpt2(tiny_gpt2: Path) -> PeftModel:
    base = AutoModelForCausalLM.from_pretrained(tiny_gpt2)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["c_attn"], fan_in_fan_out=True)
    return fill(get_peft_model(base, config))


@pytest.fixture
def classifier(tiny_bert: Path) -> PeftModel:
    base = AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=3)
    config = LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules=["query", "value"], task_type=TaskType.SEQ_CLS
    )
    return fill(get_peft_model(base, config))


def styles(model: PeftModel) -> dict[str, dict[str, Tensor]]:
    """One adapter under every kind of key."""
    saved = get_peft_model_state_dict(model)
    own = {
        key: tensor
        for key, tensor in model.state_dict().items()
        if "lora_" in key or ".modules_to_save." in key
    }
    assert any(".default." in key for key in own)
    return {
        "saved": saved,
        "own": own,
        "saved, bare": {key.removeprefix(PREFIX): tensor for key, tensor in saved.items()},
        "own, bare": {key.removeprefix(PREFIX): tensor for key, tensor in own.items()},
        "other name": {key.replace(".default.", ".b4."): tensor for key, tensor in own.items()},
    }


def assert_same(one: Adapter, other: Adapter) -> None:
    assert list(one.factors) == list(other.factors)
    assert sorted(one.full) == sorted(other.full)
    for name, factors in one.factors.items():
        assert torch.equal(factors.b, other.factors[name].b)
        assert torch.equal(factors.a, other.factors[name].a)
        assert factors.scale == other.factors[name].scale
    for name, tensor in one.full.items():
        assert torch.equal(tensor, other.full[name])


@pytest.mark.parametrize("kind", ["causal", "gpt2", "classifier"])
def test_T8_every_key_style_gives_the_same_adapter(
    kind: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    heads = ("classifier",) if kind == "classifier" else ()
    adapters = {style: from_peft(state, SCALE, heads) for style, state in styles(model).items()}
    for adapter in adapters.values():
        assert_same(adapter, adapters["saved"])
    modules = dict(model.get_base_model().named_modules())
    for name, factors in adapters["saved"].factors.items():
        assert torch.equal(factors.a, modules[name].lora_A["default"].weight)
        delta = modules[name].get_delta_weight("default").double()
        made = factors.matrix().T if kind == "gpt2" else factors.matrix()
        torch.testing.assert_close(made, delta, rtol=1e-5, atol=1e-5)
    if heads:
        assert sorted(adapters["saved"].full) == ["classifier.bias", "classifier.weight"]


@pytest.mark.parametrize("kind", ["causal", "gpt2", "classifier"])
def test_T8_what_is_written_is_what_peft_saves(kind: str, request: pytest.FixtureRequest) -> None:
    saved = get_peft_model_state_dict(request.getfixturevalue(kind))
    written = to_peft(from_peft(saved, SCALE, ("classifier",) if kind == "classifier" else ()))
    assert sorted(written) == sorted(saved)
    assert all(torch.equal(written[key], tensor) for key, tensor in saved.items())


def test_T8_nodes_with_different_key_styles_average_alike(causal: PeftModel) -> None:
    by_style = styles(causal)
    one = from_peft(by_style["saved"], SCALE)
    name = next(iter(one.factors))
    generator = torch.Generator().manual_seed(1)
    moved = {k: t + torch.randn(t.shape, generator=generator) for k, t in by_style["saved"].items()}
    other = from_peft(moved, SCALE)
    expected = exact_mean([one.factors[name], other.factors[name]], [1.0, 2.0])
    for state in by_style.values():
        own = from_peft(state, SCALE)
        mean, residual = exact_mean([own.factors[name], other.factors[name]], [1.0, 2.0])
        assert torch.equal(mean.b, expected[0].b)
        assert torch.equal(residual.u, expected[1].u)


@pytest.mark.parametrize(
    "key",
    [
        "base_model.model.q.lora_A.bias",
        "base_model.model.q.lora_magnitude_vector.default.weight",
        "base_model.model.wte.lora_embedding_A.default",
        "base_model.model.q.base_layer.weight",
        "base_model.model.score.weight",
        "classifier_head.weight",
        "q.lora_C.weight",
        "lora_A.weight",
        "",
    ],
)
def test_T8_an_unknown_key_is_named(key: str) -> None:
    state = {"q.lora_A.weight": torch.zeros(4, 8), "q.lora_B.weight": torch.zeros(6, 4)}
    with pytest.raises(AdapterError) as error:
        from_peft({**state, key: torch.zeros(2, 2)}, 1.0, ("classifier",))
    assert repr(key) in str(error.value)


def test_T8_the_untrained_copy_of_a_head_is_not_a_head(classifier: PeftModel) -> None:
    state = classifier.state_dict()
    [frozen] = [key for key in state if key.endswith("classifier.original_module.weight")]
    with pytest.raises(AdapterError, match="original_module"):
        from_peft({frozen: state[frozen]}, SCALE, ("classifier",))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("q.lora_A.b4.weight", "two keys give lora_A of q"),
        ("base_model.model.q.lora_B.weight", "two keys give lora_B of q"),
    ],
)
def test_T8_two_adapters_in_one_state_are_refused(second: str, message: str) -> None:
    state = {"q.lora_A.weight": torch.zeros(4, 8), "q.lora_B.weight": torch.zeros(6, 4)}
    twin = torch.zeros(state["q.lora_A.weight" if "_A" in second else "q.lora_B.weight"].shape)
    with pytest.raises(AdapterError, match=message):
        from_peft({**state, second: twin}, 1.0)
    heads = {"score.weight": torch.zeros(2, 2), "score.modules_to_save.default.weight": twin}
    with pytest.raises(AdapterError, match=r"two keys give score\.weight"):
        from_peft(heads, 1.0, ("score",))


def test_T8_scales_may_differ_by_module_and_none_may_lack() -> None:
    state = {
        f"{name}.lora_{side}.weight": torch.ones(shape)
        for name in ("q", "v")
        for side, shape in (("A", (4, 8)), ("B", (6, 4)))
    }
    adapter = from_peft(state, {"q": 2.0, "v": 0.5})
    assert {name: one.scale for name, one in adapter.factors.items()} == {"q": 2.0, "v": 0.5}
    with pytest.raises(AdapterError, match="no scale is given for module v"):
        from_peft(state, {"q": 2.0})


def test_T8_factors_that_do_not_fit_name_their_module() -> None:
    a, b = torch.zeros(4, 8), torch.zeros(6, 4)
    with pytest.raises(AdapterError, match="module q has lora_A but not its partner"):
        from_peft({"q.lora_A.weight": a}, 1.0)
    with pytest.raises(AdapterError, match="module q: factors do not multiply"):
        from_peft({"q.lora_A.weight": a, "q.lora_B.weight": b.T}, 1.0)
    with pytest.raises(AdapterError, match="module q: factors differ"):
        from_peft({"q.lora_A.weight": a, "q.lora_B.weight": b.double()}, 1.0)


def test_factors_rescale_and_pad_without_changing_the_update() -> None:
    generator = torch.Generator().manual_seed(0)
    factors = Factors(
        torch.randn(6, 4, generator=generator), torch.randn(4, 8, generator=generator), 3.0
    )
    assert (factors.rank, factors.shape) == (4, (6, 8))
    assert factors.with_scale(3.0) is factors
    assert factors.padded(4) is factors
    for made in (factors.with_scale(0.7), factors.padded(9), factors.with_scale(0.7).padded(9)):
        torch.testing.assert_close(made.matrix(), factors.matrix(), rtol=1e-14, atol=1e-14)
    assert factors.padded(9).rank == 9
