"""The knowledge that a coordinator keeps between two rounds, and whose of it is best.

Files are named after their SHA-256 and written before the round that names them is committed, so
that a commit never points at what isn't there; those of earlier rounds are cleared away after it.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from fedlora.adapters import RunError
from fedlora.models.knowledge import Knowledge
from fedlora.protos import describe

from .heads import checked
from .knowledge import Bounds, pack_knowledge, read_knowledge

OWN = "@coordinator"  # no node can be called so


class Library:
    """Knowledge by digest, in a folder."""

    def __init__(self, directory: Path) -> None:
        """Use `directory`, which is made when it is first written to."""
        self._directory = directory

    def keep(self, knowledge: Knowledge) -> str:
        """Write through to the disk; returns the digest, in hex.

        Raises:
            RunError: if the disk refuses.
        """
        content = pack_knowledge(knowledge)
        digest = describe(content).digest.hex()
        part = self._place(digest).with_suffix(".part")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._place(digest))
        except OSError as error:
            raise RunError(
                f"cannot write {part}: {error}; the rounds before are intact: make room, and start "
                "again"
            ) from None
        return digest

    def read(self, digest: str, bounds: Bounds) -> Knowledge:
        """What was kept under a digest.

        Raises:
            RunError: if it is missing or was altered.
        """
        content = checked(self._place(digest), digest).read_bytes()
        return read_knowledge(content, describe(content), bounds)

    def clear(self, keep: Collection[str]) -> None:
        """Remove all but these digests, and what a crash left."""
        for path in self._directory.glob("*"):
            if path.stem not in keep or path.suffix == ".part":
                path.unlink()

    def _place(self, digest: str) -> Path:
        return self._directory / f"{digest}.safetensors"


def lowest_loss(known: Mapping[str, Knowledge]) -> dict[str, list[int]]:
    """The examples that each source did best on, by its name; of equals, the coordinator's own.

    FedMKT's "greater" rule: per example the one source with the highest reward, exp(-loss).
    """
    order = sorted(known, key=lambda name: (name != OWN, name))
    losses = {name: known[name].loss_of() for name in order}
    best: dict[str, list[int]] = {}
    for sample in sorted({one for by_sample in losses.values() for one in by_sample}):
        knowing = [name for name in order if sample in losses[name]]
        best.setdefault(min(knowing, key=lambda name: losses[name][sample]), []).append(sample)
    return best
