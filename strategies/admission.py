"""Admission: what an update must be before it is averaged. A refusal stops that update alone."""

import math
import statistics
from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from fedlora.adapters import Adapter, WireError
from fedlora.adapters.mean import Missing
from fedlora.protos import Limits, Update, verify

from .payloads import FileTensors, read_adapter_tensors
from .records import HeadRecord

SUBNORMAL_SHARE = 0.01  # of the numbers of a tensor; honest training hardly makes any


def admit(
    update: Update,
    payload: bytes,
    head: HeadRecord,
    adapter: Adapter,
    already: Collection[str],
    missing: Missing,
    spool: Path,
    registered: int | None = None,
    asked: Collection[str] | None = None,
) -> Adapter:
    """Check an update against the head it should come from, and keep it on disk.

    Args:
        update: the node's message.
        payload: its tensors.
        head: the head that was sent.
        adapter: the head's adapter, which the update must fit.
        already: nodes whose update of this round is in.
        missing: whether an update may lack modules.
        spool: folder for admitted updates, so that memory does not grow with the nodes.
        registered: how many examples the node said it has; None if it wasn't asked.
        asked: the modules that the node was to train, no more and no less; None for all.

    Returns:
        The update's adapter, read from disk module by module.

    Raises:
        WireError: with the reason of the refusal.
    """
    _check_envelope(update, head, already)
    if registered is not None and update.examples > registered:
        raise WireError(f"the update claims {update.examples} examples, the node has {registered}")
    verify(payload, update.adapter, Limits(payload_bytes=4 * _nbytes(adapter) + (1 << 20)))
    place = spool / f"{len(already):05d}.safetensors"
    place.write_bytes(payload)
    try:
        received = read_adapter_tensors(FileTensors(place))
        _check_tensors(received, adapter, missing)
        if asked is not None and (odd := sorted(received.factors.keys() ^ set(asked))):
            raise WireError(f"module {odd[0]}: the node was not asked to train just these")
    except WireError:
        place.unlink()
        raise
    return received


def outliers(norms: Mapping[str, float], ratio: float) -> dict[str, str]:
    """Updates that move the model much further than their peers do, and why they are refused.

    Each is held against the median of the *others*, so that one of two can't drag the bar along.

    Args:
        norms: of each node's change, by name.
        ratio: times that median which is still taken for honest.
    """
    found = {}
    for name, norm in norms.items():
        others = [other for peer, other in norms.items() if peer != name]
        bar = ratio * statistics.median(others) if others else norm
        if math.isinf(norm):
            found[name] = "the update moves the model beyond all numbers"
        elif norm > bar > 0:
            found[name] = (
                f"the update moves the model by {norm:.3g}, more than {ratio:g} times the median "
                f"of its peers ({bar / ratio:.3g}); see federation.max_norm_ratio"
            )
    return found


def _check_envelope(update: Update, head: HeadRecord, already: Collection[str]) -> None:
    if update.node in already:
        raise WireError(f"a second update of node {update.node} in this round")
    if not update.node:
        raise WireError("the update names no node")
    expected = (head.run, head.round + 1, head.base, head.hash)
    found = (update.run, update.round, update.base, update.head)
    for name, want, got in zip(("run", "round", "base", "head"), expected, found, strict=True):
        if want != got:
            raise WireError(f"the update is for {name} {got}, expected {want}")
    if not 1 <= update.examples < 1 << 40:
        raise WireError(f"the update claims {update.examples} examples")


def _check_tensors(received: Adapter, adapter: Adapter, missing: Missing) -> None:
    if foreign := sorted(set(received.factors) - set(adapter.factors)):
        raise WireError(f"module {foreign[0]} is no target of this run")
    lacking = sorted(set(adapter.factors) - set(received.factors))
    if lacking and missing == "refuse":
        raise WireError(
            f"module {lacking[0]} is missing; give all nodes the same target modules, or declare "
            'federation.missing_modules = "zero" to count an absent module as no update'
        )
    if set(received.full) != set(adapter.full):
        raise WireError(
            f"parameters trained in full: {sorted(received.full)}, not {sorted(adapter.full)}"
        )
    for name, factors in received.factors.items():
        if factors.shape != adapter.factors[name].shape:
            wanted = adapter.factors[name].shape
            raise WireError(f"module {name}: update of shape {factors.shape}, expected {wanted}")
        if not 0 < factors.scale < float("inf"):
            raise WireError(f"module {name}: scale {factors.scale}")
        _check_numbers(f"module {name}, lora_A", factors.a)
        _check_numbers(f"module {name}, lora_B", factors.b)
    for name, tensor in received.full.items():
        if tensor.shape != adapter.full[name].shape:
            wanted_shape = tuple(adapter.full[name].shape)
            raise WireError(f"{name}: shape {tuple(tensor.shape)}, expected {wanted_shape}")
        _check_numbers(name, tensor)


def _check_numbers(name: str, tensor: torch.Tensor) -> None:
    if not tensor.is_floating_point():
        raise WireError(f"{name}: {tensor.dtype}, expected floating point")
    if not bool(torch.isfinite(tensor).all()):
        raise WireError(f"{name}: NaN or infinite values")
    tiny = (tensor != 0) & (tensor.abs() < torch.finfo(tensor.dtype).tiny)
    if int(tiny.sum()) > SUBNORMAL_SHARE * tensor.numel():
        raise WireError(f"{name}: {int(tiny.sum())} subnormal values, which no training makes")


def _nbytes(adapter: Adapter) -> int:
    pairs = sum(one.a.nbytes + one.b.nbytes for one in adapter.factors.values())
    return pairs + sum(tensor.nbytes for tensor in adapter.full.values())
