"""The ledger on disk: one folder a round, written whole or not at all, and checked when read.

A head is the base's fingerprint, every residual folded so far, and the adapter. Its hash covers all
three, so two parties with one hash hold the same model. What a round's folder says beyond that
stands in `records`; what becomes of a damaged ledger in `recovery`.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fedlora.adapters import Adapter, Residual, RunError
from fedlora.protos.codec import write

from .payloads import (
    FileTensors,
    adapter_tensors,
    read_adapter_tensors,
    read_residual_tensors,
    residual_tensors,
)
from .records import HeadRecord, Proceedings

RECORD, ADAPTER, RESIDUAL = "record.json", "adapter.safetensors", "residual.safetensors"
SNAPSHOT = "snapshot-{digest}.safetensors"


@dataclass(frozen=True)
class Snapshot:
    """The folded weights of a round, which stand for the residuals up to it.

    Attributes:
        path: of the safetensors file, by module.
        digest: SHA-256 of it, in hex.
        covers: how many residuals are in it.
    """

    path: Path
    digest: str
    covers: int

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size


class HeadStore:
    """The heads of one run, under `directory`/NNNN/."""

    def __init__(self, directory: Path) -> None:
        """Use `directory`, which is made when it is first written to."""
        self.directory = directory
        self._residuals: dict[str, Path] = {}

    @contextmanager
    def locked(self, seconds: float = 0.0) -> Iterator[None]:
        """Keep every other process from writing here.

        Args:
            seconds: to wait for another to leave; one that was killed leaves at once.

        Raises:
            RunError: if another stays.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.directory / ".lock", timeout=seconds):
                yield
        except Timeout:
            raise RunError(
                f"another coordinator leads the run in {self.directory}; stop it first, or give "
                "this run a folder of its own"
            ) from None

    def commit(
        self,
        run: str,
        base: str,
        adapter: Adapter,
        residuals: Mapping[str, Residual],
        proceedings: Proceedings | None = None,
    ) -> HeadRecord:
        """Commit the next round's head: written beside, flushed to disk, then renamed into place.

        Args:
            run: name of the run.
            base: fingerprint of the frozen weights.
            adapter: of the head.
            residuals: what this round folds, by module; empty if nothing.
            proceedings: how the round came to this head.

        Raises:
            RunError: if the disk refuses, or this round is committed already.
        """
        parent = self.record() if self.rounds() else None
        number = parent.round + 1 if parent else 0
        self.directory.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=self.directory))
        try:
            digest = write(adapter_tensors(adapter), scratch / ADAPTER)
            history = parent.history if parent else ()
            if residuals:
                history += (write(residual_tensors(residuals), scratch / RESIDUAL),)
            record = HeadRecord(
                run,
                number,
                base,
                digest,
                history,
                parent.digest if parent else "",
                proceedings or Proceedings(),
            )
            _write_through(scratch / RECORD, record.to_json())
            scratch.chmod(0o755)
            scratch.rename(self.folder(number))
            _flush_directory(self.directory)
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise RunError(
                f"cannot commit round {number} in {self.directory}: {error}; the rounds before "
                "are intact: make room, and start again"
            ) from None
        return record

    def rounds(self) -> list[int]:
        """Rounds that are committed, ascending."""
        found = self.directory.glob("[0-9]*") if self.directory.is_dir() else ()
        return sorted(int(one.name) for one in found if one.name.isdecimal() and one.is_dir())

    def record(self, round: int | None = None) -> HeadRecord:
        """A committed head's record; the latest if no round is given.

        Raises:
            RunError: if there is no such head, or its record was altered.
        """
        rounds = self.rounds()
        if not rounds or (round is not None and round not in rounds):
            raise RunError(
                f"no head of round {'any' if round is None else round} in {self.directory}; "
                f"committed rounds: {rounds or 'none'}"
            )
        path = self.folder(rounds[-1] if round is None else round) / RECORD
        try:
            return HeadRecord.from_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RunError(f"{path} was altered: {error}") from None

    def adapter(self, round: int) -> Adapter:
        """The adapter of a head, read module by module from disk.

        Raises:
            RunError: if the file is missing or was altered.
        """
        path = checked(self.adapter_file(round), self.record(round).adapter)
        return read_adapter_tensors(FileTensors(path))

    def adapter_file(self, round: int) -> Path:
        """Where a head's adapter lies, unchecked."""
        return self.folder(round) / ADAPTER

    def residual_file(self, digest: str) -> Path:
        """Where the residuals with this digest lie, unchecked.

        Raises:
            RunError: if they are not here.
        """
        if digest not in self._residuals:
            known = set(self._residuals.values())
            for round in self.rounds():
                path = self.folder(round) / RESIDUAL
                if path not in known and path.exists():
                    self._residuals[self.record(round).history[-1]] = path
        if digest not in self._residuals:
            raise RunError(f"residual {digest[:12]} is not in {self.directory}")
        return self._residuals[digest]

    def holds(self, digests: Iterable[str]) -> bool:
        """Whether the residuals with these digests lie here."""
        try:
            return all(self.residual_file(digest) for digest in digests)
        except RunError:
            return False

    def residuals(self, digest: str) -> Mapping[str, Residual]:
        """The residuals with this digest, by module, read when asked for.

        Raises:
            RunError: if they are missing or were altered.
        """
        path = checked(self.residual_file(digest), digest)
        return read_residual_tensors(FileTensors(path))

    def snapshot(self, history: Sequence[str]) -> Snapshot | None:
        """The latest snapshot that a node of this history can start from."""
        for round in reversed(self.rounds()):
            for path in self.folder(round).glob(SNAPSHOT.format(digest="*")):
                covers = self.record(round).history
                if tuple(history[: len(covers)]) == covers:
                    return Snapshot(path, path.stem.partition("-")[2], len(covers))
        return None

    def snapshot_files(self) -> Iterator[Path]:
        """Where snapshots lie, those of a crash between two among them."""
        return self.directory.glob(f"[0-9]*/{SNAPSHOT.format(digest='*')}")

    def folder(self, round: int) -> Path:
        """Where a round's files lie."""
        return self.directory / f"{round:04d}"


def checked(path: Path, digest: str) -> Path:
    """The path of a file, if its bytes hash to `digest`.

    Raises:
        RunError: if it is missing or was altered.
    """
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}") from None
    if found != digest:
        raise RunError(f"{path} was altered: its SHA-256 is not the one on record")
    return path


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
