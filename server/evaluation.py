"""The coordinator's own evaluation of heads, on text of its own."""

from collections.abc import Callable
from pathlib import Path

from peft import PeftModel

from fedlora.models.evaluation import evaluate
from fedlora.models.examples import encode
from fedlora.models.files import read_rows
from fedlora.models.tuned import shared, tokenizer_of

from .rundir import RunDirectory
from .supernets import Supernet


def own_evaluation(run: RunDirectory) -> Callable[[int], dict[str, float]]:
    """Measures a round's head on the recipe's `evaluate.data`.

    With adapters per width, at each width that all modules can have.

    Raises:
        DataError: if the data can't be used.
    """
    recipe = run.recipe
    tokenizer = tokenizer_of(recipe.model.source)
    rows = read_rows(Path(str(recipe.evaluate.data)), recipe.data)
    encoded = encode(rows, tokenizer, recipe.train.max_length, recipe.model.labels)

    def measured(model: PeftModel, where: str = "") -> dict[str, float]:
        report = evaluate(model, encoded.examples, recipe.evaluate.batch_size)
        return {f"eval_loss{where}": report.loss, f"eval_accuracy{where}": report.accuracy}

    def evaluation(round: int) -> dict[str, float]:
        if recipe.quantize.per_width:
            supernet = Supernet(run, round)
            found: dict[str, float] = {}
            for bits in supernet.widths:
                model = supernet.at(dict.fromkeys(supernet.modules, bits))
                found |= measured(model, f"_{bits}bit")
            return found
        tuned = shared(recipe.model.source, recipe.model, recipe.lora)
        history = run.heads.record(round).history
        tuned.become(run.heads.adapter(round), history, run.heads.residuals)
        return measured(tuned.model)

    return evaluation
