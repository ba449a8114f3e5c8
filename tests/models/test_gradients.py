"""Bases through which no adapter can learn are refused, all others pass."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from fedlora.adapters import ModelError
from fedlora.models.gradients import check_gradients
from fedlora.models.loading import load_base
from fedlora.models.lora import attach, initial_adapter, write_adapter
from fedlora.models.optional import int8_weight_only, nf4
from fedlora.models.quantizers import nested_layers, quantize
from fedlora.recipes.schema import LoraSection, ModelSection

CAUSAL = ModelSection(source="tiny")


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


needs_bnb = pytest.mark.skipif(not installed("bitsandbytes"), reason="no bitsandbytes")
needs_torchao = pytest.mark.skipif(not installed("torchao"), reason="no torchao")


def base_of(folder: Path) -> PreTrainedModel:
    return load_base(folder, CAUSAL)


def block_linears(base: nn.Module) -> list[str]:
    names = (name for name, module in base.named_modules() if isinstance(module, nn.Linear))
    return sorted(name for name in names if name != "lm_head")


class ActivationQuantized(nn.Linear):
    """Rounds its input to 8 bits, without a straight-through estimate."""

    def forward(self, input: Tensor) -> Tensor:
        scale = input.abs().amax(-1, keepdim=True) / 127
        return F.linear((input / scale).round() * scale, self.weight)


class Repacked(nn.Linear):
    """Takes a kernel without gradient once it was evaluated."""

    packed = False

    def forward(self, input: Tensor) -> Tensor:
        self.packed = self.packed or not self.training
        with torch.set_grad_enabled(not self.packed):
            return F.linear(input, self.weight)


@pytest.mark.parametrize("kind", [ActivationQuantized, Repacked])
def test_a_dead_layer_is_refused_wherever_it_stands(tiny_causal: Path, kind: type) -> None:
    for name in ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"):
        base = base_of(tiny_causal)
        base.get_submodule(name).__class__ = kind
        with pytest.raises(ModelError, match=f"gradients do not pass {name}"):
            check_gradients(attach(base, LoraSection(rank=2), CAUSAL))


@pytest.mark.parametrize("max_bits", [8, 4])
def test_our_layers_pass_with_side_path_and_offset(tiny_causal: Path, max_bits: int) -> None:
    base = base_of(tiny_causal)
    quantize(base, block_linears(base), "rtn", 8, max_bits)
    for layer in nested_layers(base).values():
        layer.set_offset(torch.randn(layer.scale.shape))
    check_gradients(attach(base, LoraSection(rank=2), CAUSAL))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float_bases_pass_and_stay_in_their_mode(tiny_causal: Path, dtype: torch.dtype) -> None:
    model = attach(base_of(tiny_causal).to(dtype), LoraSection(rank=2), CAUSAL)
    model.train()
    check_gradients(model)
    assert all(module.training for module in model.modules())


def test_conv1d_passes(tiny_gpt2: Path) -> None:
    check_gradients(attach(base_of(tiny_gpt2), LoraSection(rank=2), CAUSAL))


@pytest.mark.parametrize("convert", [nf4, int8_weight_only])
def test_a_missing_extra_is_named(
    tiny_causal: Path, monkeypatch: pytest.MonkeyPatch, convert: Callable[..., None]
) -> None:
    package = {"nf4": "bitsandbytes", "int8_weight_only": "torchao.quantization"}
    monkeypatch.setitem(__import__("sys").modules, package[convert.__name__], None)
    with pytest.raises(ModelError, match=r"pip install 'fedlora\[(bnb|torchao)\]'"):
        convert(base_of(tiny_causal), [])


@pytest.mark.parametrize(
    "convert",
    [
        pytest.param(nf4, marks=needs_bnb),
        pytest.param(int8_weight_only, marks=needs_torchao),
    ],
)
def test_other_libraries_layers_pass_and_learn(
    tiny_wide: Path, convert: Callable[..., None]
) -> None:
    base = base_of(tiny_wide)
    convert(base, block_linears(base))
    model = attach(base, LoraSection(rank=4), CAUSAL)
    write_adapter(model, initial_adapter(model, seed=0))
    check_gradients(model)
    ids = torch.arange(3, 27).view(2, 12)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    losses = []
    for _ in range(3):
        model.eval()
        with torch.no_grad():
            model(input_ids=ids)  # after which bitsandbytes would have no gradient
        model.train()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


@needs_torchao
def test_torchaos_dynamic_activations_are_refused(tiny_wide: Path) -> None:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    base = base_of(tiny_wide)
    chosen = {id(base.get_submodule(name)) for name in block_linears(base)}
    quantize_(
        base,
        Int8DynamicActivationInt8WeightConfig(),
        filter_fn=lambda module, _: id(module) in chosen,
    )
    with pytest.raises(ModelError, match="gradients do not pass"):
        check_gradients(attach(base, LoraSection(rank=2), CAUSAL))


@needs_bnb
def test_bitsandbytes_repacking_stays_off(tiny_wide: Path) -> None:
    import bitsandbytes as bnb

    base = base_of(tiny_wide)
    nf4(base, block_linears(base))
    layers = [module for module in base.modules() if isinstance(module, bnb.nn.Linear4bit)]
    assert len(layers) == len(block_linears(base))
    assert not any(layer.support_avx512bf16_for_cpu for layer in layers)


@pytest.fixture(scope="module")
def tiny_wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose widths other libraries' blocks of 64 divide."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        initializer_range=0.1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = LlamaForCausalLM(config)
    folder = tmp_path_factory.mktemp("wide") / "tiny-wide"
    model.save_pretrained(folder)
    return folder
