"""Models to use: the untouched base of a recipe, the head of a run on it, or any other."""

from typing import TYPE_CHECKING

from fedlora.adapters.errors import ModelError
from fedlora.recipes.schema import Recipe

if TYPE_CHECKING:
    from pathlib import Path

    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from fedlora.server.rundir import RunDirectory


def base(recipe: Recipe) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """The base model as it was before any training.

    Raises:
        ModelError: if the recipe's model does not write text.
    """
    if recipe.model.task != "causal-lm":
        raise ModelError(f"{recipe.name}: a {recipe.model.task} model does not write text")
    return whole(recipe.model.source)


def whole(source: str) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """A model by its source, such as the folder of a distilled student.

    Raises:
        ModelError: if there is none that writes text.
    """
    from fedlora.models.loading import load_base, load_tokenizer
    from fedlora.models.source import resolve
    from fedlora.recipes.schema import ModelSection

    folder = resolve(source)
    return load_base(folder, ModelSection(source=source)), load_tokenizer(folder)


def tuned(
    run: "RunDirectory", round: int | None = None
) -> "tuple[PeftModel, PreTrainedTokenizerBase]":
    """The model of a head: base, all residuals up to the round folded in, and the adapter.

    Raises:
        RunError: if the run has no head of that round.
        BaseMismatchError: if the model is another one than the run's.
        ModelError: if the run's model cannot be loaded, or does not write text.
    """
    from fedlora.models.fingerprint import require_fingerprint
    from fedlora.models.lora import attach, fold_residuals, set_frozen_weights, write_adapter
    from fedlora.models.source import resolve
    from fedlora.server.snapshots import opened

    _require_one_model(run)
    head = run.head(round)
    require_fingerprint(resolve(run.recipe.model.source), head.base)
    model, tokenizer = base(run.recipe)
    adapted = attach(model, run.recipe.lora, run.recipe.model)
    if head.snapshot:
        set_frozen_weights(adapted, opened(head.snapshot).weights)
    for residuals in head.residuals:
        fold_residuals(adapted, residuals)
    write_adapter(adapted, head.adapter)
    return adapted.eval(), tokenizer


def write_merged(run: "RunDirectory", round: int | None, destination: "Path") -> None:
    """Write the model of a head as a whole folder for transformers.

    Raises:
        RunError: if the run has no head of that round, or `destination` is taken.
        BaseMismatchError: if the model is another one than the run's.
        ModelError: if the run has no single model.
    """
    from fedlora.models.export import export_merged
    from fedlora.models.fingerprint import require_fingerprint
    from fedlora.models.source import resolve
    from fedlora.server.snapshots import opened

    _require_one_model(run)
    head, recipe = run.head(round), run.recipe
    base = require_fingerprint(resolve(recipe.model.source), head.base)
    folded = opened(head.snapshot) if head.snapshot else None
    parts = base, recipe.model, head.adapter, head.residuals, recipe.lora, destination
    export_merged(*parts, folded)


def _require_one_model(run: "RunDirectory") -> None:
    if run.recipe.quantize.per_width:
        raise ModelError(
            f"{run.path} has an adapter for each width, and so no single model: "
            "`fedlora export --bits` or --subnet writes one of its models"
        )
