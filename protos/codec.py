"""Tensors to bytes and back, without loss and without trust.

The bytes are safetensors: every dtype that torch has survives (Flower's own arrays refuse bfloat16)
and nothing in them can run. A Manifest goes beside; `decode` believes neither of the two until
they agree and stay within bounds.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fedlora.adapters import WireError

from .messages_pb2 import Manifest, TensorInfo

_HEADER_LENGTH = 8


@dataclass(frozen=True)
class Limits:
    """What a receiver accepts in one payload."""

    payload_bytes: int = 8 << 30
    header_bytes: int = 16 << 20
    tensors: int = 100_000


def encode(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as safetensors bytes; the same tensors give the same bytes."""
    return safetensors.torch.save(_plain(tensors))


def write(tensors: Mapping[str, Tensor], path: Path) -> str:
    """Tensors to a file that is flushed to disk, without a second copy of them in memory.

    Returns:
        SHA-256 of the file, in hex: that of what `encode` gives.

    Raises:
        OSError: if the disk refuses.
    """
    try:
        safetensors.torch.save_file(_plain(tensors), path)
    except safetensors.SafetensorError as error:  # its way to say that the disk refuses
        raise OSError(f"cannot write {path}: {error}") from None
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe(payload: bytes) -> Manifest:
    """The manifest of a payload that this side made.

    Raises:
        WireError: if the payload is no well-formed safetensors.
    """
    return Manifest(
        tensors=_infos(payload), size=len(payload), digest=hashlib.sha256(payload).digest()
    )


def decode(payload: bytes, manifest: Manifest, limits: Limits | None = None) -> dict[str, Tensor]:
    """Check a payload against its manifest and bounds, and read its tensors.

    Raises:
        WireError: naming the first thing that is wrong: size, digest, header, name, dtype or shape.
    """
    verify(payload, manifest, limits or Limits())
    try:
        return safetensors.torch.load(payload)
    except safetensors.SafetensorError as error:
        raise WireError(f"payload is no well-formed safetensors: {error}") from None


def verify(payload: bytes, manifest: Manifest, limits: Limits) -> None:
    """The checks of `decode` alone; cheap things first, so that rubbish costs nothing.

    Raises:
        WireError: as `decode`.
    """
    if len(payload) != manifest.size:
        raise WireError(f"payload has {len(payload)} bytes, its manifest says {manifest.size}")
    if len(payload) > limits.payload_bytes:
        raise WireError(f"payload has {len(payload)} bytes, the limit is {limits.payload_bytes}")
    header = int.from_bytes(payload[:_HEADER_LENGTH], "little")
    if header > min(limits.header_bytes, len(payload) - _HEADER_LENGTH):
        raise WireError(f"payload claims a header of {header} bytes in {len(payload)} bytes")
    if len(manifest.tensors) > limits.tensors:
        raise WireError(f"{len(manifest.tensors)} tensors announced, the limit is {limits.tensors}")
    if hashlib.sha256(payload).digest() != manifest.digest:
        raise WireError("payload was altered on its way: its SHA-256 is not the manifest's")
    if (found := _infos(payload)) != list(manifest.tensors):
        announced = {info.name: info for info in manifest.tensors}
        wrong = [one.name for one in found if announced.get(one.name) != one]
        wrong += sorted(announced.keys() - {one.name for one in found})
        raise WireError(f"payload and manifest differ in tensor(s) {wrong[:3]}")


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}


def _infos(payload: bytes) -> list[TensorInfo]:
    """Name, dtype and shape of each tensor, sorted by name, read from the header alone."""
    length = int.from_bytes(payload[:_HEADER_LENGTH], "little")
    try:
        header = json.loads(payload[_HEADER_LENGTH : _HEADER_LENGTH + length])
        header.pop("__metadata__", None)
        infos = [
            TensorInfo(name=name, dtype=entry["dtype"], shape=entry["shape"])
            for name, entry in header.items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WireError(f"payload has no well-formed safetensors header: {error}") from None
    return sorted(infos, key=lambda info: info.name)
