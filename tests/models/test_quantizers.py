"""Codes chosen three ways: nested, deterministic, close to the weight, and refused where wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fedlora.adapters import ModelError
from fedlora.models.gptq import gptq
from fedlora.models.grids import Grid, half_quadratic, round_to_nearest
from fedlora.models.loading import load_base
from fedlora.models.nested import WIDTHS, NestedLinear
from fedlora.models.quantizers import Method, nested_layers, quantize, store_fingerprint
from fedlora.recipes.schema import ModelSection

CAUSAL = ModelSection(source="tiny")
METHODS: tuple[Method, ...] = ("rtn", "hqq", "gptq")
AGAIN = """
import sys
from pathlib import Path
from fedlora.models.loading import load_base
from fedlora.models.quantizers import quantize, store_fingerprint
from fedlora.recipes.schema import ModelSection
base = load_base(Path(sys.argv[1]), ModelSection(source="tiny"))
quantize(base, sys.argv[3:], sys.argv[2], group=8)
print(store_fingerprint(base))
"""


def base_of(folder: Path) -> PreTrainedModel:
    return load_base(folder, CAUSAL)


def block_linears(base: nn.Module) -> list[str]:
    names = (name for name, module in base.named_modules() if isinstance(module, nn.Linear))
    return sorted(name for name in names if name != "lm_head")


def text(rows: int = 4) -> Tensor:
    return torch.randint(3, 400, (rows, 32), generator=torch.Generator().manual_seed(0))


def quantized(folder: Path, method: Method, max_bits: int = 8) -> PreTrainedModel:
    base = base_of(folder)
    calibration = text() if method == "gptq" else None
    quantize(base, block_linears(base), method, 8, max_bits, calibration)
    return base


@pytest.mark.parametrize("method", METHODS)
def test_only_the_named_layers_change(tiny_causal: Path, method: Method) -> None:
    before, base = base_of(tiny_causal), quantized(tiny_causal, method)
    assert sorted(nested_layers(base)) == block_linears(before)
    assert type(base.lm_head) is nn.Linear
    assert base.lm_head.weight is base.get_input_embeddings().weight
    assert torch.equal(base.lm_head.weight, before.lm_head.weight)
    assert not base.training


@pytest.mark.parametrize("method", METHODS)
def test_more_bits_are_closer(tiny_causal: Path, method: Method) -> None:
    base, exact = quantized(tiny_causal, method), base_of(tiny_causal)(text()).logits
    errors = []
    for bits in WIDTHS:
        for own in nested_layers(base).values():
            own.bits = bits
        errors.append(torch.linalg.norm(base(text()).logits - exact).item())
    assert errors == sorted(errors)
    assert errors[0] < 0.25 * errors[1]


@pytest.mark.parametrize("method", METHODS)
def test_the_same_bytes_each_time_and_in_a_store_of_four_bits(
    tiny_causal: Path, method: Method
) -> None:
    one, two = quantized(tiny_causal, method), quantized(tiny_causal, method)
    assert store_fingerprint(one) == store_fingerprint(two)
    half = quantized(tiny_causal, method, max_bits=4)
    assert store_fingerprint(half) == store_fingerprint(one, bits=4) != store_fingerprint(one)
    for name, own in nested_layers(one).items():
        assert torch.equal(own.dense(4), nested_layers(half)[name].dense())


@pytest.mark.parametrize("method", ["rtn", "hqq"])
def test_another_process_makes_the_same_store(tiny_causal: Path, method: Method) -> None:
    base = quantized(tiny_causal, method)
    command = [sys.executable, "-c", AGAIN, str(tiny_causal), method, *nested_layers(base)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert found == store_fingerprint(base)


def test_the_fingerprint_tells_codes_scales_and_names_apart_but_not_offsets(
    tiny_causal: Path,
) -> None:
    base = quantized(tiny_causal, "rtn")
    own, before = next(iter(nested_layers(base).values())), store_fingerprint(base)
    own.set_offset(torch.ones_like(own.scale))
    assert store_fingerprint(base) == before
    own.codes[0, 0, 0] += 1
    assert store_fingerprint(base) != before
    own.codes[0, 0, 0] -= 1
    own.zero[0, 0] += 1
    assert store_fingerprint(base) != before


@pytest.mark.parametrize("lay", [round_to_nearest, half_quadratic])
def test_the_nearest_byte_lies_in_the_nearest_cell(lay: type[Grid]) -> None:
    weight = torch.randn(50, 64, generator=torch.Generator().manual_seed(1))
    grid = lay(weight)
    codes, cells = grid.codes(weight), grid.cells(weight)
    inside = (codes // 16 - cells).abs()
    assert inside.max() <= 1  # at a boundary, by the rounding of a tie
    assert (inside > 0).float().mean() < 0.01
    assert torch.equal(grid.scale.half().float(), grid.scale)
    error = (grid.values(codes) - weight).abs() / grid.scale
    assert error.quantile(0.99) <= 1 / 32 + 1e-4


def test_round_to_nearest_reaches_every_weight() -> None:
    weight = torch.randn(50, 64, generator=torch.Generator().manual_seed(1))
    grid = round_to_nearest(weight)
    error = (grid.values(grid.codes(weight)) - weight).abs() / grid.scale
    assert error.max() <= 1 / 32 + 0.02  # half a place, and the float16 of scale and zero


def test_half_quadratic_fits_better_at_four_bits() -> None:
    weight = torch.randn(400, 64, generator=torch.Generator().manual_seed(1))

    def error(grid: Grid) -> float:
        return (grid.centres(grid.cells(weight)) - weight).abs().mean().item()

    assert error(half_quadratic(weight)) < 0.99 * error(round_to_nearest(weight))


@pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
@pytest.mark.parametrize("method", METHODS)
def test_a_constant_group_is_exact(value: float, method: Method) -> None:
    weight = torch.full((3, 16), value)
    if method == "gptq":
        codes, grid = gptq(weight, torch.eye(16, dtype=torch.float64), 8)
    else:
        grid = {"rtn": round_to_nearest, "hqq": half_quadratic}[method](weight.view(3, 2, 8))
        codes = grid.codes(weight.view(3, 2, 8))
    own = NestedLinear(
        codes.to(torch.uint8), grid.scale.squeeze(-1).half(), grid.zero.squeeze(-1).half(), 8
    )
    for bits in WIDTHS:
        assert torch.equal(own.dense(bits), weight)


def test_gptq_fits_the_outputs_better_at_both_widths() -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 64, generator=draw)
    mix = torch.randn(64, 64, generator=draw) * torch.logspace(0, -2, 64)
    inputs = torch.randn(500, 64, generator=draw) @ mix
    hessian = (inputs.T @ inputs).double()
    nearest = round_to_nearest(weight.view(32, -1, 16))
    plain = nearest.codes(weight.view(32, -1, 16))
    codes, grid = gptq(weight, hessian, 16)

    def error(grid: Grid, codes: Tensor, bits: int) -> float:
        dense = grid.values(codes) if bits == 8 else grid.centres(codes // 16)
        return torch.linalg.norm(inputs @ (dense.view(32, 64) - weight).T).item()

    assert error(grid, codes, 4) < 0.8 * error(nearest, plain, 4)
    assert error(grid, codes, 8) < 0.3 * error(grid, codes, 4)


def test_what_cannot_be_quantized_is_refused_and_nothing_changes(tiny_causal: Path) -> None:
    base = base_of(tiny_causal)
    names = block_linears(base)
    cases: list[tuple[list[str], dict[str, object], str]] = [
        ([*names, "lm_head"], {}, "lm_head maps to or from the vocabulary"),
        (["model.embed_tokens"], {}, "maps to or from the vocabulary"),
        (["model.norm"], {}, "expected nn.Linear"),
        (["model.nowhere"], {}, "has no module model.nowhere"),
        (names, {"group": 64}, r"has (48|80) inputs, which groups of 64 do not divide"),
        (names, {"group": 6}, "multiple of 4"),
        (names, {"max_bits": 3}, "cannot store 3 bits"),
        (names, {"method": "gptq"}, "needs a calibration text"),
        (names, {"method": "awq"}, "unknown method 'awq'"),
    ]
    for chosen, options, message in cases:
        with pytest.raises(ModelError, match=message):
            quantize(base, chosen, **{"method": "rtn", "group": 8, **options})  # type: ignore[arg-type]
        assert nested_layers(base) == {}
    quantize(base, names[:1], "rtn", group=8)
    with pytest.raises(ModelError, match=r"is a NestedLinear, expected nn.Linear"):
        quantize(base, names, "rtn", group=8)


def test_conv1d_is_refused(tiny_gpt2: Path) -> None:
    base = base_of(tiny_gpt2)
    with pytest.raises(ModelError, match=r"transformer.h.0.attn.c_attn is a Conv1D"):
        quantize(base, ["transformer.h.0.attn.c_attn"], "rtn", group=8)
