"""PEFT state dicts in and out, in every key style that PEFT itself writes.

PEFT loads a state dict with foreign keys as if all were well and leaves the adapter untrained; here
an unknown key is an error that names it.
"""

import re
from collections.abc import Collection, Mapping

from torch import Tensor

from .errors import AdapterError
from .factors import Adapter, Factors

PREFIX = "base_model.model."
_FACTOR = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.[^.]+)?\.weight"
)
_FULL = re.compile(r"(?:base_model\.model\.)?(?P<name>.+)")


def from_peft(
    state: Mapping[str, Tensor],
    scale: float | Mapping[str, float],
    full_modules: Collection[str] = (),
) -> Adapter:
    """Read an adapter from a PEFT state dict.

    Args:
        state: keys with or without `base_model.model.`, with or without an adapter name
            (`lora_A.default.weight`).
        scale: of all modules, or by module name.
        full_modules: names of modules trained in full (PEFT's `modules_to_save`).

    Raises:
        AdapterError: for an unknown key, a factor without its partner, or a module without scale.
    """
    sides: dict[str, dict[str, Tensor]] = {}
    full: dict[str, Tensor] = {}
    for key, tensor in state.items():
        if match := _FACTOR.fullmatch(key):
            if (
                sides.setdefault(match["module"], {}).setdefault(match["side"], tensor)
                is not tensor
            ):
                raise AdapterError(
                    f"two keys give lora_{match['side']} of {match['module']}: {key}"
                )
        elif name := _full_name(key, full_modules):
            if full.setdefault(name, tensor) is not tensor:
                raise AdapterError(f"two keys give {name}: {key}")
        else:
            raise AdapterError(
                f"unknown key {key!r} in the adapter; expected <module>.lora_A.weight, "
                f"<module>.lora_B.weight, or a parameter of {sorted(full_modules) or 'no module'}"
            )
    factors = {name: _pair(name, pair, scale) for name, pair in sorted(sides.items())}
    return Adapter(factors, full)


def to_peft(adapter: Adapter) -> dict[str, Tensor]:
    """Write an adapter as PEFT's `get_peft_model_state_dict` does; the scales stay outside."""
    state = {PREFIX + name: tensor for name, tensor in adapter.full.items()}
    for name, factors in adapter.factors.items():
        state[f"{PREFIX}{name}.lora_A.weight"] = factors.a
        state[f"{PREFIX}{name}.lora_B.weight"] = factors.b
    return state


def _full_name(key: str, full_modules: Collection[str]) -> str | None:
    """The parameter's name in the base model, if it belongs to a module trained in full."""
    match = _FULL.fullmatch(key)
    name = re.sub(r"\.modules_to_save\.[^.]+\.", ".", match["name"] if match else key)
    module = name.rpartition(".")[0]
    known = any(module == full or module.startswith(full + ".") for full in full_modules)
    frozen = ".original_module." in name  # PEFT keeps the untrained parameter beside the trained
    return name if known and not frozen else None


def _pair(name: str, pair: Mapping[str, Tensor], scale: float | Mapping[str, float]) -> Factors:
    if set(pair) != {"A", "B"}:
        raise AdapterError(f"module {name} has lora_{next(iter(pair))} but not its partner")
    try:
        own_scale = scale if isinstance(scale, float | int) else scale[name]
        return Factors(pair["B"], pair["A"], float(own_scale))
    except KeyError:
        raise AdapterError(f"no scale is given for module {name}") from None
    except AdapterError as error:
        raise AdapterError(f"module {name}: {error}") from None
