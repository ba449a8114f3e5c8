"""Adapters and residuals as named tensors: one layout for the wire and for the disk."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from fedlora.adapters import Adapter, Factors, Residual, WireError

_FULL = "full:"
_SIDES = ("lora_A", "lora_B", "scale")


def adapter_tensors(adapter: Adapter) -> dict[str, Tensor]:
    """`<module>.lora_A`, `<module>.lora_B`, `<module>.scale` (0-d float64), `full:<parameter>`."""
    tensors = {_FULL + name: tensor for name, tensor in adapter.full.items()}
    for name, factors in adapter.factors.items():
        tensors[f"{name}.lora_A"] = factors.a
        tensors[f"{name}.lora_B"] = factors.b
        tensors[f"{name}.scale"] = torch.tensor(factors.scale, dtype=torch.float64)
    return tensors


def read_adapter_tensors(tensors: Mapping[str, Tensor]) -> Adapter:
    """The adapter that `adapter_tensors` wrote; reads a tensor only when it is asked for.

    Raises:
        WireError: for a name that belongs to no module, or a module that is incomplete.
    """
    modules: dict[str, set[str]] = {}
    full = [name for name in tensors if name.startswith(_FULL)]
    for key in tensors.keys() - set(full):
        module, _, side = key.rpartition(".")
        if not module or side not in _SIDES:
            raise WireError(f"{key!r} is no tensor of an adapter; expected <module>.<{_SIDES}>")
        modules.setdefault(module, set()).add(side)
    for module, sides in modules.items():
        if len(sides) < len(_SIDES):
            raise WireError(f"module {module} lacks {sorted(set(_SIDES) - sides)}")
    return Adapter(
        _LazyFactors(tensors, sorted(modules)), {name[len(_FULL) :]: tensors[name] for name in full}
    )


def residual_tensors(residuals: Mapping[str, Residual]) -> dict[str, Tensor]:
    """`<module>.u` and `<module>.v`, or `<module>.u` alone where dense."""
    tensors = {}
    for name, residual in residuals.items():
        tensors[f"{name}.u"] = residual.u
        if residual.v is not None:
            tensors[f"{name}.v"] = residual.v
    return tensors


def read_residual_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Residual]:
    """The residuals that `residual_tensors` wrote.

    Raises:
        WireError: for a name that belongs to no residual.
    """
    modules = {key.removesuffix(".u") for key in tensors if key.endswith(".u")}
    for key in tensors:
        if key.rpartition(".")[0] not in modules or key[-2:] not in (".u", ".v"):
            raise WireError(f"{key!r} is no tensor of a residual; expected <module>.u and .v")
    return {
        name: Residual(tensors[f"{name}.u"], tensors.get(f"{name}.v")) for name in sorted(modules)
    }


class FileTensors(Mapping[str, Tensor]):
    """The tensors of a safetensors file, each read from disk when it is asked for."""

    def __init__(self, path: Path) -> None:
        """Open `path`.

        Raises:
            WireError: if the file is no well-formed safetensors.
        """
        try:
            self._file = safetensors.safe_open(path, framework="pt")
        except safetensors.SafetensorError as error:
            raise WireError(f"{path} is no well-formed safetensors: {error}") from None
        self._names = dict.fromkeys(self._file.keys())

    def __getitem__(self, name: str) -> Tensor:
        """Read one tensor."""
        if name not in self._names:
            raise KeyError(name)
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        """Names in the file's order."""
        return iter(self._names)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self._names)


class _LazyFactors(Mapping[str, Factors]):
    """Factors by module over any mapping of tensors."""

    def __init__(self, tensors: Mapping[str, Tensor], modules: list[str]) -> None:
        self._tensors, self._modules = tensors, dict.fromkeys(modules)

    def __getitem__(self, name: str) -> Factors:
        if name not in self._modules:
            raise KeyError(name)
        a, b, scale = (self._tensors[f"{name}.{side}"] for side in _SIDES)
        return Factors(b, a, float(scale))

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)
