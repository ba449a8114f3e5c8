"""What a node has received of the folded weights, on its disk, by digest.

Residuals, and snapshots that stand for many of them, are part of the base that a node trains on,
so they are kept: the coordinator sends each once. Nodes on one machine may share a folder.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import psutil
from torch import Tensor

from fedlora.adapters import Residual, RunError, WireError
from fedlora.strategies.payloads import FileTensors, read_residual_tensors


class ResidualCache:
    """Residual payloads in files named after their SHA-256."""

    def __init__(self, directory: Path) -> None:
        """Keep them in `directory`, which is made when needed.

        What a process left that died while writing is cleared away.
        """
        self._directory = directory
        for part in directory.glob("*.part"):
            writer = int(part.stem.rpartition(".")[2])
            if writer == os.getpid() or not psutil.pid_exists(writer):
                part.unlink(missing_ok=True)

    def keep(self, payloads: Mapping[str, bytes]) -> None:
        """Store checked payloads, by digest; each file appears whole or not at all."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for digest, payload in payloads.items():
            if not self._place(digest).exists():
                part = self._directory / f"{digest}.{os.getpid()}.part"
                part.write_bytes(payload)
                part.replace(self._place(digest))

    def held(self) -> list[str]:
        """Digests of what is here, unchecked."""
        return sorted(path.stem for path in self._directory.glob("*.safetensors"))

    def read(self, digest: str) -> Mapping[str, Residual]:
        """The residuals of one round, by module.

        Raises:
            RunError: if they were never received, or the file was altered; the coordinator then
                sends them all again.
        """
        try:
            return read_residual_tensors(self.read_tensors(digest))
        except WireError as error:
            raise RunError(f"the residual {digest[:12]} can't be used: {error}") from None

    def read_tensors(self, digest: str) -> Mapping[str, Tensor]:
        """The tensors of a payload, each read when it is asked for.

        Raises:
            RunError: as `read`.
        """
        place = self._place(digest)
        try:
            with place.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise RunError(f"this node lacks the residual {digest[:12]}") from None
        if found != digest:
            place.unlink()
            raise RunError(f"the residual {digest[:12]} on this node's disk was altered")
        try:
            return FileTensors(place)
        except WireError as error:
            raise RunError(f"the residual {digest[:12]} can't be used: {error}") from None

    def _place(self, digest: str) -> Path:
        return self._directory / f"{digest}.safetensors"
