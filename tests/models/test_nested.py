"""The nested layer against dequantize-then-linear, and against the float64 reading of its codes."""

import copy
from pathlib import Path

import peft
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from fedlora.adapters import AdapterError, ModelError, Residual
from fedlora.models.loading import empty_base, load_base
from fedlora.models.lora import attach, fold_residuals, initial_adapter, lora_layers, write_adapter
from fedlora.models.nested import WIDTHS, NestedLinear, packed
from fedlora.models.quantizers import nested_layers, quantize, store_fingerprint
from fedlora.models.store import load_store, save_store
from fedlora.models.unpacking import _by_kernel, _by_operations
from fedlora.recipes.schema import LoraSection, ModelSection

CAUSAL = ModelSection(source="tiny")
OUT, INNER, GROUP = 12, 48, 16


def layer(seed: int = 0, bias: bool = False) -> NestedLinear:
    """Random codes on random grids."""
    draw = torch.Generator().manual_seed(seed)
    groups = INNER // GROUP
    return NestedLinear(
        torch.randint(256, (OUT, groups, GROUP), dtype=torch.uint8, generator=draw),
        torch.rand(OUT, groups, generator=draw).half(),
        torch.randn(OUT, groups, generator=draw).half(),
        GROUP,
        nn.Parameter(torch.randn(OUT, generator=draw)) if bias else None,
    )


def reference(own: NestedLinear, bits: int) -> Tensor:
    """The weight of a store of 8 bits, number by number, in float64."""
    weight = torch.empty(OUT, INNER, dtype=torch.float64)
    for o in range(OUT):
        for j in range(INNER):
            code, scale = (
                int(own.codes[o, j // GROUP, j % GROUP]),
                own.scale[o, j // GROUP].double(),
            )
            width = 2 ** (8 - bits)  # of the bin, in places
            centre = code // width * width + (width - 1) / 2
            weight[o, j] = own.zero[o, j // GROUP].double() + scale * (centre - 7.5) / 16
            if own.offset is not None:
                weight[o, j] += own.offset[o, j // GROUP].double()
    return weight


def base_of(folder: Path) -> PreTrainedModel:
    return load_base(folder, CAUSAL)


def block_linears(base: nn.Module) -> list[str]:
    names = (name for name, module in base.named_modules() if isinstance(module, nn.Linear))
    return sorted(name for name in names if name != "lm_head")


@pytest.fixture
def quantized(tiny_causal: Path) -> PreTrainedModel:
    base = base_of(tiny_causal)
    quantize(base, block_linears(base), "rtn", group=8)
    return base


@pytest.mark.parametrize("bits", WIDTHS)
def test_every_width_is_the_bin_centre_of_the_prefix(bits: int) -> None:
    own = layer()
    torch.testing.assert_close(own.dense(bits).double(), reference(own, bits), rtol=0, atol=2e-6)
    own.set_offset(torch.randn(OUT, INNER // GROUP))
    torch.testing.assert_close(own.dense(bits).double(), reference(own, bits), rtol=0, atol=3e-6)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("extras", [False, True])
def test_output_and_gradient_are_those_of_the_dense_weight(bits: int, extras: bool) -> None:
    own = layer(bias=extras)
    own.bits = bits
    x, dense = torch.randn(3, 5, INNER, requires_grad=True), own.dense()
    if extras:
        own.set_offset(torch.randn(OUT, INNER // GROUP))
        own.set_side(Residual(torch.randn(OUT, 3), torch.randn(3, INNER)))
        assert own.side_u is not None
        assert own.side_v is not None
        dense = own.dense() + own.side_u @ own.side_v
    y = own(x)
    expected = F.linear(x, dense, own.bias)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=2e-5)
    pull = torch.randn_like(y)
    (found,) = torch.autograd.grad((y * pull).sum(), x)
    (wanted,) = torch.autograd.grad((expected * pull).sum(), x)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-5)


def test_no_dense_weight_waits_for_backward() -> None:
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        layer()(torch.randn(2, INNER, requires_grad=True))
    assert kept == []


def test_a_store_of_four_bits_is_half_as_large_and_the_same_model() -> None:
    own = layer(bias=True)
    own.set_offset(torch.randn(OUT, INNER // GROUP))
    own.set_side(Residual(torch.randn(OUT, 2), torch.randn(2, INNER)))
    half = own.truncated(4)
    assert half.codes.nbytes * 2 == own.codes.nbytes
    assert (half.max_bits, half.bits) == (4, 4)
    x = torch.randn(4, INNER)
    for bits in (4, 3, 2):
        own.bits = half.bits = bits
        assert torch.equal(half.dense(), own.dense())
        assert torch.equal(half(x), own(x))
    own.codes.zero_()
    assert not torch.equal(half.dense(), own.dense()), "it has to be a copy"


@given(st.integers(0, 2**32), st.sampled_from([4, 8, 24]))
@settings(max_examples=30, deadline=None)
def test_packing_keeps_every_cell(seed: int, group: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(256, (3, 2, group), dtype=torch.uint8, generator=draw)
    one, none = torch.ones(3, 2), torch.zeros(3, 2)
    for unpack in (_by_operations, _by_kernel):
        cells = unpack(packed(codes), group, 0x0F, one, none).view_as(codes)
        assert torch.equal(cells, (codes >> 4).float())


@given(st.integers(0, 2**32), st.sampled_from([0xFF, 0xF0, 0xE0, 0xC0]))
@settings(max_examples=30, deadline=None)
def test_kernel_and_operations_give_the_same_bytes(seed: int, mask: int) -> None:
    own = layer(seed)
    step, base = own.scale.float() / 16, own.zero.float()
    codes = (own.codes, mask) if seed % 2 else (packed(own.codes), mask >> 4)
    assert torch.equal(
        _by_kernel(*codes[:1], GROUP, codes[1], step, base),
        _by_operations(*codes[:1], GROUP, codes[1], step, base),
    )


@pytest.mark.parametrize("bits", [16, 5, 1, 0, None])
def test_an_unknown_width_is_refused(bits: int) -> None:
    with pytest.raises(ModelError, match=r"no width of .* bits: its store has \[8, 4, 3, 2\]"):
        layer().bits = bits


def test_a_width_that_is_not_stored_is_refused() -> None:
    half = layer().truncated(4)
    with pytest.raises(ModelError, match=r"no width of 8 bits: its store has \[4, 3, 2\]"):
        half.bits = 8
    with pytest.raises(ModelError, match="cannot keep 8 bits of a store of 4"):
        half.truncated(8)


def test_side_path_and_offset_must_fit() -> None:
    own = layer()
    with pytest.raises(AdapterError, match=r"does not fit a layer of \(out, in\) = \(12, 48\)"):
        own.set_side(Residual(torch.ones(INNER, 2), torch.ones(2, OUT)))
    with pytest.raises(AdapterError, match=r"expected \(out, groups\) = \(12, 3\)"):
        own.set_offset(torch.ones(OUT, INNER))


def test_a_side_path_replaces_the_last_one_and_may_be_dense() -> None:
    own, x = layer(), torch.randn(2, INNER)
    bare = own(x)
    first, second = torch.randn(OUT, INNER), torch.randn(OUT, INNER)
    own.set_side(Residual(first))
    own.set_side(Residual(second))
    torch.testing.assert_close(own(x), bare + x @ second.T)
    own.set_side(None)
    assert torch.equal(own(x), bare)


def test_offsets_are_replaced_and_kept_in_float32() -> None:
    own, x = layer(), torch.randn(3, INNER)
    bare = own(x)
    small = torch.full((OUT, INNER // GROUP), 1e-5).half()
    own.set_offset(torch.ones(OUT, INNER // GROUP))
    own.set_offset(small)
    assert own.offset is not None
    assert own.offset.dtype == torch.float32
    assert torch.equal(own.offset, small.float())
    own.set_offset(None)
    assert torch.equal(own(x), bare)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casting_the_model_leaves_the_store_alone(dtype: torch.dtype) -> None:
    own = layer()
    own.set_offset(torch.full((OUT, INNER // GROUP), 1e-4))
    before = own.dense()
    own.to(dtype)
    assert torch.equal(own.dense(), before)
    assert own(torch.randn(2, INNER, dtype=dtype)).dtype == dtype


def test_autocast_computes_in_bfloat16_and_gives_gradients() -> None:
    own, x = layer(), torch.randn(2, INNER, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = own(x)
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert x.grad is not None
    torch.testing.assert_close(x.grad, own.dense().sum(0).expand(2, -1), rtol=2e-2, atol=0.1)


def test_state_dict_and_copies_round_trip() -> None:
    own = layer(bias=True)
    own.set_offset(torch.randn(OUT, INNER // GROUP))
    own.set_side(Residual(torch.randn(OUT, 2), torch.randn(2, INNER)))
    other = layer(seed=1, bias=True)
    other.load_state_dict(own.state_dict())
    for found in (other, copy.deepcopy(own)):
        assert found.state_dict().keys() == own.state_dict().keys()
        assert all(torch.equal(found.state_dict()[k], t) for k, t in own.state_dict().items())
    other.load_state_dict(layer(bias=True).state_dict())
    assert other.offset is None
    assert other.side_u is None


def test_a_saved_store_comes_back_byte_for_byte(quantized: PreTrainedModel, tmp_path: Path) -> None:
    first = next(iter(nested_layers(quantized).values()))
    first.set_offset(torch.randn(first.scale.shape))
    first.set_side(Residual(torch.randn(first.out_features, 2), torch.randn(2, first.in_features)))
    save_store(quantized, tmp_path / "one")
    fresh = copy.deepcopy(quantized)
    load_store(fresh, tmp_path / "one")
    save_store(fresh, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    ids = torch.arange(9)[None]
    assert torch.equal(fresh(ids).logits, quantized(ids).logits)


def test_a_store_opens_on_a_float_base_and_on_an_empty_one(
    quantized: PreTrainedModel, tiny_causal: Path, tmp_path: Path
) -> None:
    save_store(quantized, tmp_path / "store")
    for base in (base_of(tiny_causal), empty_base(tiny_causal, CAUSAL)):
        load_store(base, tmp_path / "store")
        assert store_fingerprint(base) == store_fingerprint(quantized)


def test_a_store_of_another_model_is_refused(
    quantized: PreTrainedModel, tiny_causal: Path, tmp_path: Path
) -> None:
    save_store(quantized, tmp_path / "store")
    base = base_of(tiny_causal)
    base.model.layers[1].mlp.up_proj = nn.Linear(7, 5)
    with pytest.raises(ModelError, match="of another model"):
        load_store(base, tmp_path / "store")
    (tmp_path / "text").write_text("no store")
    with pytest.raises(ModelError, match="cannot read"):
        load_store(base, tmp_path / "text")
    with pytest.raises(ModelError, match="cannot read"):
        load_store(base, tmp_path / "absent")


def test_pefts_all_linear_and_ours_find_the_layers(quantized: PreTrainedModel) -> None:
    wanted = set(nested_layers(quantized))
    theirs = peft.get_peft_model(
        copy.deepcopy(quantized), peft.LoraConfig(target_modules="all-linear", r=2)
    )
    assert set(lora_layers(theirs)) == wanted
    ours = attach(quantized, LoraSection(rank=2), CAUSAL)
    assert set(lora_layers(ours)) == wanted
    assert set(nested_layers(ours)) == wanted
    dtypes = {parameter.dtype for parameter in ours.parameters() if parameter.requires_grad}
    assert dtypes == {torch.float32}


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("how", ["merge_adapter", "merge_and_unload"])
def test_merging_is_refused_and_changes_nothing(
    quantized: PreTrainedModel, how: str, safe: bool
) -> None:
    model = attach(quantized, LoraSection(rank=2), CAUSAL)
    before = store_fingerprint(model)
    with pytest.raises(AdapterError, match="no weight to read, fold or merge into"):
        getattr(model, how)(safe_merge=safe)
    assert store_fingerprint(model) == before


def test_folding_is_refused(quantized: PreTrainedModel) -> None:
    model = attach(quantized, LoraSection(rank=2), CAUSAL)
    name, own = next(iter(nested_layers(model).items()))
    residual = Residual(torch.ones(own.out_features, 1), torch.ones(1, own.in_features))
    with pytest.raises(AdapterError, match=f"{name} is quantized"):
        fold_residuals(model, {name: residual})


@pytest.mark.parametrize("bits", WIDTHS)
def test_an_adapter_learns_at_every_width(quantized: PreTrainedModel, bits: int) -> None:
    model = attach(quantized, LoraSection(rank=4), CAUSAL)
    write_adapter(model, initial_adapter(model, seed=0))
    for own in nested_layers(model).values():
        own.bits = bits
    ids = torch.arange(3, 27).view(2, 12)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    losses = []
    for _ in range(4):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


def test_adapter_gradients_are_those_of_a_dense_model(tiny_causal: Path) -> None:
    nested, dense = base_of(tiny_causal), base_of(tiny_causal)
    quantize(nested, block_linears(nested), "rtn", group=8)
    widths = dict(zip(sorted(nested_layers(nested)), [8, 4, 3, 2] * 4, strict=False))
    for name, own in nested_layers(nested).items():
        own.bits = widths[name]
        dense.get_submodule(name).weight.data = own.dense()
    gradients = []
    ids = torch.arange(3, 27).view(2, 12)
    for base in (nested, dense):
        model = attach(base, LoraSection(rank=4), CAUSAL)
        write_adapter(model, initial_adapter(model, seed=0))
        model(input_ids=ids, labels=ids).loss.backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    for name, found in gradients[0].items():
        wanted = gradients[1][name]
        assert torch.linalg.norm(found - wanted) <= 1e-5 * torch.linalg.norm(wanted), name


def test_evaluating_in_between_does_not_change_the_gradients(quantized: PreTrainedModel) -> None:
    model = attach(quantized, LoraSection(rank=4), CAUSAL)
    write_adapter(model, initial_adapter(model, seed=0))
    ids = torch.arange(3, 27).view(2, 12)

    def gradients() -> list[Tensor]:
        model.train()
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    before = gradients()
    model.eval()
    with torch.inference_mode():
        model(input_ids=ids)
    after = gradients()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
