"""Names of adapters that belong to one width of a module: `model.layers.0.mlp.up_proj@4`.

In a once-for-all run every module has an adapter for each width (LLM-QFA, arXiv 2405.20202). To the
algebra, the wire and the ledger each is a module of its own.
"""

from collections.abc import Iterable, Mapping

from .factors import Adapter, Factors

MARK = "@"


def at_width(module: str, bits: int) -> str:
    """The name of a module's adapter for a width."""
    return f"{module}{MARK}{bits}"


def module_of(name: str) -> tuple[str, int | None]:
    """The module that an adapter is for, and its width; None for an adapter of all widths."""
    module, mark, bits = name.rpartition(MARK)
    return (module, int(bits)) if mark and bits.isdecimal() else (name, None)


def names_at(subnet: Mapping[str, int]) -> dict[str, str]:
    """The adapter that each module of a subnet uses, by module."""
    return {module: at_width(module, bits) for module, bits in subnet.items()}


def taken(adapter: Adapter, names: Mapping[str, str]) -> Adapter:
    """The adapter of a subnet, under the modules' own names; full parameters are everyone's."""
    return Adapter({module: adapter.factors[name] for module, name in names.items()}, adapter.full)


def returned(adapter: Adapter, names: Mapping[str, str]) -> Adapter:
    """What `taken` took, under the names that it had."""
    return Adapter({name: adapter.factors[module] for module, name in names.items()}, adapter.full)


def repeated(adapter: Adapter, widths: Iterable[int]) -> Adapter:
    """The same factors for every width: how all start."""
    factors = {
        at_width(module, bits): Factors(one.b.clone(), one.a.clone(), one.scale)
        for module, one in adapter.factors.items()
        for bits in sorted(widths)
    }
    return Adapter(factors, adapter.full)
