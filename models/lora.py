"""The adapter on a model: attach it, read it out, write it in, fold residuals below it.

PEFT holds the layers; here its names and orientations become those of `fedlora.adapters`: module
names of the base model, B (out, rank) and A (rank, in) for nn.Linear and Conv1D alike.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fedlora.adapters import (
    Adapter,
    AdapterError,
    Factors,
    ModelError,
    Residual,
    fold,
    spread_residual,
)
from fedlora.adapters.folding import FOLDABLE
from fedlora.recipes.schema import LoraSection, ModelSection

from .loading import head_modules
from .nested import NestedLinear
from .pooled import group_of, pool
from .quiet import quiet

NAME = "default"  # PEFT's name for the one adapter
TASK_TYPES = {
    "causal-lm": TaskType.CAUSAL_LM,
    "sequence-classification": TaskType.SEQ_CLS,
}
HEAD_STD = 0.02


def attach(base: PreTrainedModel, lora: LoraSection, model: ModelSection) -> PeftModel:
    """Put LoRA layers around the target modules of `base`, in place, and freeze the rest.

    A classifier's head is trained in full beside them. The factors' values are to be written with
    `write_adapter`; on a base on the meta device they have none.

    Raises:
        ModelError: if a target names no linear module, or the output layer of a model whose
            output and input embeddings are one weight.
    """
    head = head_modules(base, model)
    targets = _targets(base, lora, head)
    modules = dict(base.named_modules())
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # PEFT divides it by r: a float will do
        use_rslora=lora.rslora,
        lora_dropout=lora.dropout,
        target_modules=targets,
        modules_to_save=list(head) or None,
        task_type=TASK_TYPES[model.task],
        fan_in_fan_out=any(isinstance(modules[name], Conv1D) for name in targets),
    )
    # Not PEFT's low_cpu_mem_usage: it patches nn.Module for all threads of the process.
    with quiet(), torch.random.fork_rng(devices=[]), base.device:
        torch.default_generator.manual_seed(0)  # PEFT draws from the global generator
        peft_model = get_peft_model(base, config)
        for name, layer in lora_layers(peft_model).items():
            if lora.pooling > 1:
                pool(name, layer, NAME, lora.pooling)
    return peft_model


def initial_adapter(peft_model: PeftModel, seed: int) -> Adapter:
    """The adapter of round 0, the same bytes for a model on any device, meta included.

    B is zero and A uniform as PEFT has it (Kaiming with a = sqrt(5)); a classifier's weights are
    normal with deviation 0.02, its biases zero. Drawn in order of name.
    """
    generator = torch.Generator().manual_seed(seed)
    factors = {}
    for name, layer in lora_layers(peft_model).items():
        a = torch.empty(layer.lora_A[NAME].weight.shape)
        nn.init.kaiming_uniform_(a, a=5**0.5, generator=generator)
        b = torch.zeros(layer.lora_B[NAME].weight.shape)
        factors[name] = Factors(b, a, layer.scaling[NAME])
    full = {
        name: _initial(name, parameter.shape, generator)
        for name, parameter in full_parameters(peft_model).items()
    }
    return Adapter(factors, full)


def read_adapter(peft_model: PeftModel) -> Adapter:
    """A copy of the adapter on the CPU."""
    factors = {
        name: Factors(
            _copy(layer.lora_B[NAME].weight), _copy(layer.lora_A[NAME].weight), layer.scaling[NAME]
        )
        for name, layer in lora_layers(peft_model).items()
    }
    full = {name: _copy(parameter) for name, parameter in full_parameters(peft_model).items()}
    return Adapter(factors, full)


def write_adapter(peft_model: PeftModel, adapter: Adapter) -> None:
    """Set the model's adapter to `adapter`, in place; on an error nothing has changed.

    Raises:
        AdapterError: if a module or parameter is missing, unknown, or of another shape, dtype or
            scale.
    """
    layers, full = lora_layers(peft_model), full_parameters(peft_model)
    _same_names("module", layers, adapter.factors)
    _same_names("parameter", full, adapter.full)
    pairs: list[tuple[Tensor, Tensor]] = []
    for name, layer in layers.items():
        factors, scale = adapter.factors[name], layer.scaling[NAME]
        if abs(factors.scale - scale) > 1e-9 * scale:
            raise AdapterError(f"{name}: the adapter's scale is {factors.scale}, expected {scale}")
        pairs.append(_fitting(f"{name}, factor B", layer.lora_B[NAME].weight, factors.b))
        pairs.append(_fitting(f"{name}, factor A", layer.lora_A[NAME].weight, factors.a))
    for name, parameter in full.items():
        pairs.append(_fitting(name, parameter, adapter.full[name]))
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source)


def fold_residuals(peft_model: PeftModel, residuals: Mapping[str, Residual]) -> None:
    """Add residuals to the frozen weights, in place; on an error nothing has changed.

    Raises:
        AdapterError: if there is no such module, or the residual does not fit its weight.
    """
    check_residuals(peft_model, residuals)
    layers = lora_layers(peft_model)
    for name, residual in residuals.items():
        whole = spread_residual(residual, group_of(layers[name], NAME))
        fold(layers[name].get_base_layer().weight, whole, layers[name].fan_in_fan_out)


def set_frozen_weights(peft_model: PeftModel, weights: Mapping[str, Tensor]) -> None:
    """Replace frozen weights, in place, by ones that were folded elsewhere.

    Args:
        peft_model: with LoRA layers on these modules.
        weights: by module, as the module stores them.

    Raises:
        AdapterError: if there is no such module, or a weight is of another shape or dtype.
    """
    layers = lora_layers(peft_model)
    if unknown := sorted(set(weights) - set(layers)):
        raise AdapterError(f"a folded weight is for {unknown[0]}, no target of the adapter")
    with torch.no_grad():
        for name, weight in weights.items():
            own = layers[name].get_base_layer().weight
            target, source = _fitting(f"{name}, folded weight", own, weight)
            target.copy_(source)


def check_residuals(peft_model: PeftModel, residuals: Mapping[str, Residual]) -> None:
    """Check that residuals fit the model's modules; the model may be on the meta device.

    Raises:
        AdapterError: naming the first that does not.
    """
    layers = lora_layers(peft_model)
    for name, residual in residuals.items():
        if name not in layers:
            raise AdapterError(f"a residual is for {name}, which is no target of the adapter")
        own = layers[name].get_base_layer()
        shape = update_shape(layers[name])
        if residual.shape != shape:
            raise AdapterError(f"the residual of {name} is {residual.shape}, expected {shape}")
        if isinstance(own, NestedLinear):
            raise AdapterError(
                f"{name} is quantized, and a residual would be rounded away in its codes: keep it "
                "beside them, as a side path or offset"
            )
        if own.weight.dtype not in FOLDABLE:
            raise AdapterError(f"{name} is {own.weight.dtype}: only float32 can take a residual")


def update_shape(layer: Any) -> tuple[int, int]:
    """(out, in) of the layer's factors and residuals; in groups where they are pooled."""
    return layer.out_features, layer.in_features // group_of(layer, NAME)


def weight_count(layer: Any) -> int:
    """Numbers in the frozen weight of a LoRA layer, however they are held."""
    return int(layer.out_features * layer.in_features)


def lora_layers(peft_model: PeftModel) -> dict[str, Any]:
    """PEFT's LoRA layers by module name in the base model, sorted.

    Each has `get_base_layer()` with the frozen weight, and `fan_in_fan_out`: whether that is
    stored as (in, out).
    """
    modules = peft_model.get_base_model().named_modules()
    return dict(sorted((name, module) for name, module in modules if isinstance(module, LoraLayer)))


def full_parameters(peft_model: PeftModel) -> dict[str, nn.Parameter]:
    """The parameters trained in full, by name in the base model, sorted."""
    return {
        f"{name}.{own}": parameter
        for name, module in sorted(peft_model.get_base_model().named_modules())
        if isinstance(module, ModulesToSaveWrapper)
        for own, parameter in sorted(module.modules_to_save[NAME].named_parameters())
    }


def _targets(base: PreTrainedModel, lora: LoraSection, head: tuple[str, ...]) -> list[str]:
    """Full names of the modules to adapt, sorted."""
    output = base.get_output_embeddings()
    linear = {
        name: module
        for name, module in base.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and name.partition(".")[0] not in head
    }
    if lora.targets == "all-linear":
        return sorted(name for name, module in linear.items() if module is not output)
    chosen: set[str] = set()
    for target in lora.targets:
        found = {name for name in linear if name == target or name.endswith(f".{target}")}
        if not found:
            endings = sorted({name.rpartition(".")[2] for name in linear})
            raise ModelError(
                f"lora.targets: no linear module of {type(base).__name__} is named {target!r}; "
                f'there are {", ".join(endings)}, or "all-linear" for all but the output layer'
            )
        chosen |= found
    for name in chosen:
        if linear[name] is output and output.weight is base.get_input_embeddings().weight:
            raise ModelError(
                f"lora.targets: {name} shares its weight with the input embeddings, so that a "
                "fold would change both; leave it out"
            )
    return sorted(chosen)


def _initial(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    if name.endswith("bias"):
        return torch.zeros(shape)
    if len(shape) < 2:  # the gain of a normalisation layer
        return torch.ones(shape)
    return torch.empty(shape).normal_(0, HEAD_STD, generator=generator)


def _copy(parameter: Tensor) -> Tensor:
    return parameter.detach().to("cpu", copy=True)


def _same_names(kind: str, expected: Iterable[str], given: Iterable[str]) -> None:
    missing, unknown = sorted(set(expected) - set(given)), sorted(set(given) - set(expected))
    if missing or unknown:
        raise AdapterError(
            f"the adapter does not fit the model: missing {kind}s {missing}, unknown {unknown}"
        )


def _fitting(what: str, target: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    if target.shape != source.shape or target.dtype != source.dtype:
        raise AdapterError(
            f"{what} is {tuple(source.shape)} {source.dtype}, "
            f"expected {tuple(target.shape)} {target.dtype}"
        )
    return target, source
