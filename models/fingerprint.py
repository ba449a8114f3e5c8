"""The fingerprint: which frozen weights a party holds.

Exact aggregation means nothing on different bases, so a node whose fingerprint differs from the
coordinator's is refused. It covers the pretrained tensors alone: not how they are spread over
files, nor in what order, nor the files' metadata.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from fedlora.adapters import BaseMismatchError, ModelError

from .cache import cache_folder
from .source import weight_files

CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class _Stored:
    """Where a tensor's bytes lie."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def fingerprint(folder: Path) -> str:
    """SHA-256 over name, dtype, shape and bytes of every tensor, in order of name.

    Reading takes about a second per GB, so the result is kept in the cache under the files' paths,
    sizes and times; memory stays flat.

    Returns:
        64 hexadecimal digits.

    Raises:
        ModelError: if the folder has no safetensors weights, or one of the files is malformed.
    """
    files = weight_files(folder)
    entry = cache_folder("fingerprints") / _stamp(files)
    if entry.is_file():
        return entry.read_text("ascii")
    digest = _digest(files)
    fresh = entry.with_name(f"{entry.name}.{os.getpid()}")
    fresh.write_text(digest, "ascii")
    fresh.replace(entry)
    return digest


def require_fingerprint(folder: Path, expected: str) -> Path:
    """The folder, if its weights are those that a head was made for.

    Raises:
        BaseMismatchError: if not.
        ModelError: as `fingerprint`.
    """
    if (found := fingerprint(folder)) != expected:
        raise BaseMismatchError(
            f"{folder} holds other weights than the run's base: its fingerprint is {found}, the "
            f"run's {expected}; name the same model"
        )
    return folder


def _stamp(files: list[Path]) -> str:
    """A name that changes when a file is replaced or written to."""
    facts = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _digest(files: list[Path]) -> str:
    tensors = {name: tensor for file in files for name, tensor in _tensors(file).items()}
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        # Its length in front, so that no two lists of tensors give the same stream of bytes.
        header = json.dumps([name, tensor.dtype, tensor.shape]).encode()
        total.update(len(header).to_bytes(8, "little") + header)
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.start)
            for at in range(0, tensor.size, CHUNK):
                total.update(stream.read(min(CHUNK, tensor.size - at)))
    return total.hexdigest()


def _tensors(file: Path) -> dict[str, _Stored]:
    """The tensors of one file, by name. Format: header length (u64), JSON header, bytes."""
    try:
        with safe_open(file, framework="pt"):  # checks the header against the file's size
            pass
    except SafetensorError as error:
        raise ModelError(f"{file} is not a valid safetensors file: {error}") from None
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return {
        name: _Stored(
            file,
            facts["dtype"],
            tuple(facts["shape"]),
            start=8 + length + facts["data_offsets"][0],
            size=facts["data_offsets"][1] - facts["data_offsets"][0],
        )
        for name, facts in header.items()
    }
