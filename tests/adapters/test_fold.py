"""Folding a residual into a stored weight, rounded once."""

import pytest
import torch

from fedlora.adapters import AdapterError, Residual, fold


def residual(out: int, inner: int, dtype: torch.dtype = torch.float32) -> Residual:
    generator = torch.Generator().manual_seed(out)
    u, v = (torch.randn(*s, generator=generator) for s in ((out, 5), (5, inner)))
    return Residual(1e-3 * u.to(dtype), v.to(dtype))


# 600 rows: more than one block of rows, the last of them not full.
@pytest.mark.parametrize(("out", "inner"), [(40, 72), (600, 48), (48, 600)])
@pytest.mark.parametrize("fan_in_fan_out", [False, True])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fold_is_the_sum_rounded_once(
    out: int, inner: int, fan_in_fan_out: bool, dense: bool, dtype: torch.dtype
) -> None:
    added = residual(out, inner, dtype)
    added = Residual(added.matrix().to(dtype)) if dense else added
    shape = (inner, out) if fan_in_fan_out else (out, inner)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    matrix = added.matrix().T if fan_in_fan_out else added.matrix()
    expected = weight.double() + matrix
    place = weight.data_ptr()
    fold(weight, added, fan_in_fan_out)
    assert weight.data_ptr() == place
    assert (weight.double() - expected).abs().max() <= torch.finfo(dtype).eps * 4


def test_a_frozen_parameter_can_be_folded_into() -> None:
    parameter = torch.nn.Parameter(torch.zeros(40, 72))
    fold(parameter, residual(40, 72), False)
    assert torch.allclose(parameter, residual(40, 72).matrix(torch.float32))
    assert parameter.grad_fn is None


def test_an_empty_residual_changes_nothing() -> None:
    weight = torch.randn(40, 72, generator=torch.Generator().manual_seed(1))
    before = weight.clone()
    fold(weight, Residual(torch.zeros(40, 0), torch.zeros(0, 72)), False)
    assert torch.equal(weight, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.uint8])
def test_weights_that_would_round_it_away_are_refused(dtype: torch.dtype) -> None:
    weight = torch.ones(40, 72).to(dtype)
    before = weight.clone()
    with pytest.raises(AdapterError, match=r"cannot fold a residual into torch.*float32"):
        fold(weight, residual(40, 72), False)
    assert torch.equal(weight, before)


@pytest.mark.parametrize("fan_in_fan_out", [False, True])
def test_a_residual_of_another_shape_is_refused(fan_in_fan_out: bool) -> None:
    shape = (40, 72) if fan_in_fan_out else (72, 40)
    with pytest.raises(AdapterError, match=r"\(40, 72\) does not fit .* \(72, 40\)"):
        fold(torch.zeros(shape), residual(40, 72), fan_in_fan_out)
