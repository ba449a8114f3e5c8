"""What LoRA factors are and their algebra: exact mean, residual, folding, receipts.

Needs torch alone: no Flower, no transformers. Everything else in fedlora stands on this package.
Names are loaded when they are asked for, so that an error class costs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import (
        AdapterError,
        BaseMismatchError,
        DataError,
        EngineError,
        FedloraError,
        IdentityError,
        ModelError,
        QuorumError,
        RecipeError,
        RunError,
        WireError,
    )
    from .factors import Adapter, Factors
    from .folding import fold
    from .mean import exact_mean, mean_of_full, module_factors, module_names
    from .norms import change_norm
    from .peft_state import from_peft, to_peft
    from .pooling import spread_adapter, spread_residual
    from .receipt import Receipt, aggregation_error, fold_error, weight_products
    from .residual import Residual, add
    from .widths import at_width, module_of, names_at, repeated, returned, taken

__all__ = [
    "Adapter",
    "AdapterError",
    "BaseMismatchError",
    "DataError",
    "EngineError",
    "Factors",
    "FedloraError",
    "IdentityError",
    "ModelError",
    "QuorumError",
    "Receipt",
    "RecipeError",
    "Residual",
    "RunError",
    "WireError",
    "add",
    "aggregation_error",
    "at_width",
    "change_norm",
    "exact_mean",
    "fold",
    "fold_error",
    "from_peft",
    "mean_of_full",
    "module_factors",
    "module_names",
    "module_of",
    "names_at",
    "repeated",
    "returned",
    "spread_adapter",
    "spread_residual",
    "taken",
    "to_peft",
    "weight_products",
]

_MODULES = (
    "errors",
    "factors",
    "residual",
    "folding",
    "mean",
    "norms",
    "pooling",
    "receipt",
    "peft_state",
    "widths",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = vars(import_module(f".{module}", __name__)).get(name)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
