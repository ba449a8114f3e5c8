"""Subnets: what they weigh as stored, what they set, and the widest that fits a budget."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from fedlora.adapters import ModelError
from fedlora.models.loading import empty_base, load_base
from fedlora.models.lora import attach
from fedlora.models.memory import HEAP, predict_memory
from fedlora.models.nested import NestedLinear
from fedlora.models.quantizers import nested_layers, quantize
from fedlora.models.subnet import FLOAT, Shapes, Subnet, apply, fit, linear_shapes
from fedlora.recipes.schema import LoraSection, ModelSection

CAUSAL = ModelSection(source="tiny")
GROUP = 8


def block_linears(base: nn.Module) -> list[str]:
    names = (name for name, module in base.named_modules() if isinstance(module, nn.Linear))
    return sorted(name for name in names if name != "lm_head")


@pytest.fixture
def base(tiny_causal: Path) -> PreTrainedModel:
    return load_base(tiny_causal, CAUSAL)


@pytest.fixture
def shapes(tiny_causal: Path) -> Shapes:
    empty = empty_base(tiny_causal, CAUSAL)
    return linear_shapes(empty, block_linears(empty))


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_weight_bytes_are_those_of_the_store(
    base: PreTrainedModel, shapes: Shapes, bits: int
) -> None:
    quantize(base, list(shapes), "rtn", GROUP, max_bits=8 if bits == 8 else 4)
    held = sum(layer.store_bytes for layer in nested_layers(base).values())
    assert Subnet.uniform(list(shapes), bits).weight_bytes(shapes, GROUP) == held


def test_float_weighs_four_bytes(base: PreTrainedModel, shapes: Shapes) -> None:
    held = sum(base.get_submodule(name).weight.nbytes for name in shapes)
    assert Subnet.uniform(list(shapes), FLOAT).weight_bytes(shapes, GROUP) == held


def widths_of(model: nn.Module) -> dict[str, int]:
    return {name: layer.bits for name, layer in nested_layers(model).items()}


def test_apply_sets_every_width_also_below_an_adapter(base: PreTrainedModel) -> None:
    names = block_linears(base)
    quantize(base, names, "rtn", GROUP)
    wanted = {name: (8, 4, 3, 2)[i % 4] for i, name in enumerate(names)}
    apply(attach(base, LoraSection(rank=2), CAUSAL), Subnet(wanted))
    found = {n: m.bits for n, m in base.named_modules() if isinstance(m, NestedLinear)}
    assert {name.removesuffix(".base_layer"): bits for name, bits in found.items()} == wanted
    assert widths_of(base) == wanted


def test_what_cannot_be_applied_is_refused_and_changes_nothing(base: PreTrainedModel) -> None:
    names = block_linears(base)
    quantize(base, names[:-1], "rtn", GROUP, max_bits=4)
    before = widths_of(base)
    whole = dict.fromkeys(names[:-1], 3)
    cases = [
        ({**whole, names[0]: 8}, "at 8 bits, but 4 are stored"),
        ({**whole, names[0]: 32}, "at 32 bits, but here it is quantized"),
        ({**whole, names[-1]: 4}, "at 4 bits, but here it is not quantized"),
        (dict.fromkeys(names[1:-1], 3), f"no width for {names[0]}"),
    ]
    for widths, message in cases:
        with pytest.raises(ModelError, match=message):
            apply(base, Subnet(widths))
        assert widths_of(base) == before
    apply(base, Subnet({**whole, names[-1]: 32}))
    assert set(widths_of(base).values()) == {3}


def test_an_unknown_width_is_refused() -> None:
    with pytest.raises(ModelError, match="has no width of 5 bits"):
        Subnet({"layer": 5})


def test_fit_takes_all_that_the_budget_gives(shapes: Shapes) -> None:
    names = list(shapes)

    def cost(subnet: Subnet) -> int:
        return subnet.weight_bytes(shapes, GROUP)

    four, eight = (cost(Subnet.uniform(names, bits)) for bits in (4, 8))
    assert fit(shapes, four, cost) == Subnet.uniform(names, 4)
    assert fit(shapes, eight, cost) == Subnet.uniform(names, 8)
    assert fit(shapes, 1e12, cost) == Subnet.uniform(names, FLOAT)
    mixed = fit(shapes, (four + eight) / 2, cost)
    assert set(mixed.widths.values()) == {4, 8}
    assert cost(mixed) <= (four + eight) / 2
    following = next(name for name in names if mixed.widths[name] == 4)
    assert cost(Subnet({**mixed.widths, following: 8})) > (four + eight) / 2
    with pytest.raises(ModelError, match="4 bits for all layers need"):
        fit(shapes, four - 1, cost)


def test_the_prediction_is_of_what_the_model_holds(tiny_causal: Path, shapes: Shapes) -> None:
    empty = empty_base(tiny_causal, CAUSAL)
    need = predict_memory(empty, Subnet.uniform(list(shapes), 32), 4, 2, 16, GROUP)
    model = attach(load_base(tiny_causal, CAUSAL), LoraSection(rank=4), CAUSAL)
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    frozen = sum(p.nbytes for p in model.parameters() if not p.requires_grad)
    assert (need.adapters, need.gradients, need.optimizer) == (trained, trained, 2 * trained)
    assert need.weights + need.embeddings == frozen
    assert need.total == sum(vars(need).values())


def test_the_predicted_activations_are_what_autograd_keeps(
    tiny_causal: Path, shapes: Shapes
) -> None:
    model = attach(load_base(tiny_causal, CAUSAL), LoraSection(rank=4), CAUSAL)
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}
    held = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held.append(storage)
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids, mask = torch.ones(4, 64, dtype=torch.long), torch.ones(4, 64, dtype=torch.long)
    mask[0, 40:] = 0
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=ids, attention_mask=mask, logits_to_keep=1)
    empty = empty_base(tiny_causal, CAUSAL)
    need = predict_memory(empty, Subnet.uniform(list(shapes), 32), 4, 4, 64, GROUP)
    logits = 3 * 4 * 64 * empty.config.vocab_size * 4
    assert (need.activations - logits) / HEAP == pytest.approx(sum(kept.values()), rel=0.1)


def test_narrower_needs_less_and_side_paths_more(tiny_causal: Path, shapes: Shapes) -> None:
    empty, names = empty_base(tiny_causal, CAUSAL), list(shapes)
    weights = [
        predict_memory(empty, Subnet.uniform(names, bits), 4, 1, 8, GROUP).weights
        for bits in (32, 8, 4)
    ]
    assert weights == sorted(weights, reverse=True)
    subnet = Subnet.uniform(names, 4)
    with_side = predict_memory(empty, subnet, 4, 1, 8, GROUP, side_rank=2, offsets=True)
    quantized = load_base(tiny_causal, CAUSAL)
    quantize(quantized, names, "rtn", GROUP, 4)
    held = 0
    for layer in nested_layers(quantized).values():
        held += 4 * (layer.scale.numel() + 2 * (layer.out_features + layer.in_features))
    assert with_side.side == held
