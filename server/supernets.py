"""The head of a once-for-all run, to be taken at any subnet of its widths."""

from collections.abc import Mapping

from peft import PeftModel

from fedlora.adapters import ModelError
from fedlora.models.fingerprint import require_fingerprint
from fedlora.models.quantized_base import targets
from fedlora.models.quantized_model import quantized
from fedlora.models.quantizers import nested_layers
from fedlora.models.source import resolve
from fedlora.models.subnet import LinearShape
from fedlora.protos import decode
from fedlora.strategies.payloads import read_residual_tensors
from fedlora.strategies.sides import Sides

from .rundir import RunDirectory


class Supernet:
    """One head, and the quantized base with all its widths.

    Attributes:
        modules: number of weights of each module that has widths.
        widths: bits that there are, narrowest first.
        head: hash of the head.
        round: whose it is.
    """

    def __init__(self, run: RunDirectory, round: int | None = None) -> None:
        """Open the head of a round, by default the last.

        Raises:
            ModelError: if the run has no adapters per width, or its base isn't here.
            RunError: if there is no such round.
        """
        recipe = run.recipe
        if not recipe.quantize.per_width:
            raise ModelError(
                f"{run.path} has one adapter for all widths (quantize.adapters is "
                f'"{recipe.quantize.adapters}"): subnets are of runs with adapters "per-width"'
            )
        record = run.heads.record(round)
        folder = require_fingerprint(resolve(recipe.model.source), record.base)
        self.round, self.head = record.round, record.hash
        self.widths = tuple(sorted(recipe.quantize.widths))
        self.modules = targets(folder, recipe.model, recipe.lora)
        self._adapter = run.heads.adapter(record.round)
        self._history, self._residuals = record.history, run.heads.residuals
        side = Sides(run.heads, recipe.quantize.side_rank).of(record)
        self._side = read_residual_tensors(decode(side.payload, side.proto.manifest))
        self.model = quantized(
            recipe.model.source, recipe.model, recipe.lora, recipe.quantize, self.widths[-1]
        )

    @property
    def shapes(self) -> dict[str, LinearShape]:
        """Of the modules, for their memory."""
        layers = nested_layers(self.model.model)
        return {n: LinearShape(one.out_features, one.in_features) for n, one in layers.items()}

    def at(self, subnet: Mapping[str, int]) -> PeftModel:
        """The model of a subnet; the same object each time.

        Raises:
            AdapterError: if the subnet names other modules or widths.
        """
        self.model.become(self._adapter, subnet, self._history, self._residuals, self._side)
        return self.model.model
