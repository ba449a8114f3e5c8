"""Export: a tuned model as ordinary files that work without fedlora.

Either the whole model with everything merged into its weights, or one PEFT adapter on the
untouched base that carries the adapter and all residuals.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import save_file

from fedlora.adapters import (
    Adapter,
    Factors,
    Residual,
    RunError,
    add,
    spread_adapter,
    spread_residual,
    to_peft,
)
from fedlora.recipes.schema import LoraSection, ModelSection

from .cache import published
from .loading import empty_base, load_base, load_tokenizer
from .lora import (
    NAME,
    attach,
    check_residuals,
    fold_residuals,
    read_adapter,
    set_frozen_weights,
    write_adapter,
)
from .quantizers import nested_layers
from .quiet import quiet
from .source import reference
from .tuned import FoldedWeights


def export_merged(
    folder: Path,
    model: ModelSection,
    adapter: Adapter,
    residuals: Sequence[Mapping[str, Residual]],
    lora: LoraSection,
    destination: Path,
    folded: FoldedWeights | None = None,
) -> None:
    """Write a model folder, with tokenizer, for `AutoModel....from_pretrained`.

    Args:
        folder: the base, as `source.resolve` returns it.
        model: the section of the run's recipe.
        adapter: of the head to export.
        residuals: of each round so far, in order, by module name.
        lora: the section of the run's recipe.
        destination: a folder that does not exist yet, or is empty.
        folded: stand for residuals before these.

    Raises:
        RunError: if `destination` holds files or cannot be written.
        AdapterError: if adapter or residuals do not fit the base.
        ModelError: if the base cannot be loaded.
    """
    adapter, residuals, lora = _plain(adapter, residuals, lora)
    with _new_folder(destination) as fresh:
        tuned = attach(load_base(folder, model), lora, model)
        if folded:
            set_frozen_weights(tuned, folded.weights)
        for of_round in residuals:
            fold_residuals(tuned, of_round)
        write_adapter(tuned, adapter)
        with quiet():
            tuned.merge_and_unload().save_pretrained(fresh)
            load_tokenizer(folder).save_pretrained(fresh)


def export_subnet(
    quantized: PeftModel, folder: Path, model: ModelSection, lora: LoraSection, destination: Path
) -> None:
    """Write what a quantized model computes as an ordinary float32 folder, with tokenizer.

    Codes are read at the widths that the layers have now; side paths, offsets and adapter are
    merged, exactly.

    Args:
        quantized: with nested layers on every module of its adapter.
        folder: the base, as `source.resolve` returns it.
        model: the section of the run's recipe.
        lora: the section of the run's recipe.
        destination: a folder that does not exist yet, or is empty.

    Raises:
        RunError, ModelError: as `export_merged`.
    """
    adapter = spread_adapter(read_adapter(quantized), lora.pooling)
    with _new_folder(destination) as fresh, torch.no_grad():
        base = load_base(folder, model)
        for name, layer in nested_layers(quantized).items():
            change = adapter.factors[name].matrix()
            if layer.side_u is not None:
                change += Residual(layer.side_u, layer.side_v).matrix()
            base.get_parameter(f"{name}.weight").copy_(layer.dense(dtype=torch.float64) + change)
        for name, tensor in adapter.full.items():
            base.get_parameter(name).copy_(tensor)
        with quiet():
            base.save_pretrained(fresh)
            load_tokenizer(folder).save_pretrained(fresh)


def export_adapter(
    folder: Path,
    model: ModelSection,
    adapter: Adapter,
    residuals: Sequence[Mapping[str, Residual]],
    lora: LoraSection,
    destination: Path,
) -> None:
    """Write one PEFT adapter for the untouched base, for `PeftModel.from_pretrained`.

    The factors of the adapter and of all residuals are stacked and recompressed, so each module
    has the rank that its total update has: `rank_pattern` says which. The base's weights are not
    read. Arguments and errors as in `export_merged`.
    """
    adapter, residuals, lora = _plain(adapter, residuals, lora)
    with _new_folder(destination) as fresh:
        peft_model = attach(empty_base(folder, model), lora, model)
        write_adapter(peft_model, adapter)  # on the meta device: checks that it fits
        for of_round in residuals:
            check_residuals(peft_model, of_round)
        whole = {
            name: _whole(factors, [of_round[name] for of_round in residuals if name in of_round])
            for name, factors in adapter.factors.items()
        }
        config = _described(peft_model.peft_config[NAME], whole)
        config.base_model_name_or_path = reference(model.source, folder)
        config.save_pretrained(str(fresh))
        state = to_peft(Adapter(whole, adapter.full))
        save_file(
            {name: tensor.contiguous() for name, tensor in state.items()},
            fresh / "adapter_model.safetensors",
            metadata={"format": "pt"},
        )


def _plain(
    adapter: Adapter, residuals: Sequence[Mapping[str, Residual]], lora: LoraSection
) -> tuple[Adapter, list[Mapping[str, Residual]], LoraSection]:
    """Pooled factors as plain ones, which PEFT can merge and others can read."""
    wide = [
        {name: spread_residual(one, lora.pooling) for name, one in of_round.items()}
        for of_round in residuals
    ]
    plain = lora.model_copy(update={"kind": "plain"})
    return spread_adapter(adapter, lora.pooling), [*wide], plain


def _whole(factors: Factors, residuals: Sequence[Residual]) -> Factors:
    """One pair of factors, scale 1, for an adapter and residuals: multiplied out in float64."""
    update = Residual(factors.scale * factors.b.double(), factors.a.double())
    total, _ = add([update, *residuals]).recompressed()
    assert total.v is not None  # what is recompressed is factors
    whole = Factors(total.u.float(), total.v.float(), scale=1.0)
    return whole.padded(max(1, whole.rank))  # PEFT knows no rank 0


def _described(config: Any, whole: Mapping[str, Factors]) -> Any:
    """PEFT's description of factors whose ranks differ and whose scale alpha / rank is 1."""
    ranks = {name: factors.rank for name, factors in whole.items()}
    [(usual, _)] = Counter(ranks.values()).most_common(1)
    config.r = config.lora_alpha = usual
    config.rank_pattern = {name: rank for name, rank in ranks.items() if rank != usual}
    config.alpha_pattern = dict(config.rank_pattern)
    config.use_rslora = False
    config.inference_mode = True
    config.target_modules = sorted(config.target_modules)  # a set: PEFT would write any order
    return config


@contextmanager
def _new_folder(destination: Path) -> Iterator[Path]:
    """A folder to fill, which appears as `destination` when it is complete."""
    if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
        raise RunError(f"{destination} exists already: name a new or empty folder to export to")
    try:
        with published(destination) as fresh:
            yield fresh
    except OSError as error:
        raise RunError(f"cannot write {destination}: {error.strerror or error}") from error
