"""Heads on disk: one folder a round, written whole or not at all.

A head is the base's fingerprint, every residual folded so far, and the adapter. Its hash covers all
three, so two parties with one hash hold the same model.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedlora.adapters import Adapter, Residual, RunError

from .payloads import FileTensors, read_adapter_tensors, read_residual_tensors


@dataclass(frozen=True)
class HeadRecord:
    """What identifies a head.

    Attributes:
        run: name of the run.
        round: 0 before any training.
        base: fingerprint of the frozen pretrained weights.
        adapter: SHA-256 of the adapter's payload, in hex.
        history: SHA-256 of every residual folded so far, in hex, oldest first.
    """

    run: str
    round: int
    base: str
    adapter: str
    history: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """SHA-256 over base, history and adapter, in hex; run and round don't enter."""
        return head_hash(self.base, self.history, self.adapter)


def head_hash(base: str, history: Sequence[str], adapter: str) -> str:
    """The hash of a head, from the hex digests of its parts."""
    parts = json.dumps({"adapter": adapter, "base": base, "history": list(history)})
    return hashlib.sha256(parts.encode()).hexdigest()


class HeadStore:
    """The heads of one run, under `directory`/NNNN/{head.json, adapter.safetensors, ...}."""

    def __init__(self, directory: Path) -> None:
        """Use `directory`, which is made on the first save."""
        self.directory = directory

    def save(self, record: HeadRecord, adapter: bytes, residual: bytes | None) -> None:
        """Commit a head: written beside, flushed to disk, then renamed into place.

        Args:
            record: what the payloads hash to.
            adapter: safetensors payload.
            residual: safetensors payload of what this round folded; None if nothing.

        Raises:
            RunError: if this round is committed already, or the disk refuses.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=self.directory))
        files = {"adapter.safetensors": adapter, "head.json": _to_json(record)}
        if residual is not None:
            files["residual.safetensors"] = residual
        try:
            for name, content in files.items():
                _write_through(scratch / name, content)
            scratch.chmod(0o755)
            scratch.rename(self._folder(record.round))
            _flush_directory(self.directory)
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise RunError(
                f"cannot commit round {record.round} in {self.directory}: {error}"
            ) from None

    def rounds(self) -> list[int]:
        """Rounds that are committed, ascending."""
        return sorted(int(path.name) for path in self.directory.glob("[0-9]*"))

    def record(self, round: int | None = None) -> HeadRecord:
        """A committed head's record; the latest if no round is given.

        Raises:
            RunError: if there is no such head.
        """
        rounds = self.rounds()
        if not rounds or (round is not None and round not in rounds):
            raise RunError(
                f"no head of round {'any' if round is None else round} in {self.directory}; "
                f"committed rounds: {rounds or 'none'}"
            )
        text = (self._folder(rounds[-1] if round is None else round) / "head.json").read_text()
        fields = json.loads(text)
        fields.pop("hash")
        return HeadRecord(**{**fields, "history": tuple(fields["history"])})

    def adapter_payload(self, round: int) -> bytes:
        """The adapter's bytes, checked against the record.

        Raises:
            RunError: if the file is missing or was altered.
        """
        return _checked(self._folder(round) / "adapter.safetensors", self.record(round).adapter)

    def adapter(self, round: int) -> Adapter:
        """The adapter of a head, read module by module from disk."""
        self.adapter_payload(round)
        return read_adapter_tensors(FileTensors(self._folder(round) / "adapter.safetensors"))

    def residual_payloads(self, history: Sequence[str]) -> Iterator[bytes]:
        """The residuals with these digests, in this order, each checked.

        Raises:
            RunError: if one is missing or was altered.
        """
        places = dict(self._residual_files())
        for digest in history:
            if digest not in places:
                raise RunError(f"residual {digest[:12]} is not in {self.directory}")
            yield _checked(places[digest], digest)

    def residuals(self, history: Sequence[str]) -> list[Mapping[str, Residual]]:
        """The residuals with these digests, by module, one mapping a round, read when asked for.

        Raises:
            RunError: if one is missing or was altered.
        """
        for _ in self.residual_payloads(history):
            pass  # each is checked as it is read, and let go
        places = dict(self._residual_files())
        return [read_residual_tensors(FileTensors(places[digest])) for digest in history]

    def _residual_files(self) -> Iterator[tuple[str, Path]]:
        for round in self.rounds():
            path = self._folder(round) / "residual.safetensors"
            if path.exists():
                yield self.record(round).history[-1], path

    def _folder(self, round: int) -> Path:
        return self.directory / f"{round:04d}"


def _to_json(record: HeadRecord) -> bytes:
    return json.dumps({**asdict(record), "hash": record.hash}, indent=1).encode()


def _checked(path: Path, digest: str) -> bytes:
    """A file's bytes, if they hash to `digest`."""
    try:
        payload = path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}") from None
    if hashlib.sha256(payload).hexdigest() != digest:
        raise RunError(f"{path} was altered: its SHA-256 is not the one on record")
    return payload


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
