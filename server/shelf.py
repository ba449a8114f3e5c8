"""What the hub has to give: the files of each head, named, measured and hashed.

The ledger is read as it lies there, while the coordinator goes on writing it; nothing is locked,
and nothing in it is changed. A file that is gone by the time it is read raises OSError: asking
again gives what there is then.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlora.adapters import RunError
from fedlora.recipes.loading import dump
from fedlora.recipes.schema import EvaluateSection, Recipe
from fedlora.strategies.heads import ADAPTER, RECORD, RESIDUAL, Snapshot
from fedlora.strategies.records import HeadRecord

from .rundir import RunDirectory

CHUNK = 1 << 20  # bytes that are sent at once


@dataclass(frozen=True)
class ShelfFile:
    """A file that can be sent.

    Attributes:
        name: within a run's directory or, if merged, the model's folder.
        path: where it lies here.
        size: in bytes.
        digest: SHA-256 that it should have, in hex.
    """

    name: str
    path: Path
    size: int
    digest: str


@dataclass(frozen=True)
class _Entry:
    """What is remembered of a round, so that its record is parsed once."""

    head: str
    covers: int  # residuals in its history
    residual: str  # digest of the one that this round folded; empty if none
    record: ShelfFile


class Shelf:
    """The files of one run's heads."""

    def __init__(self, run: RunDirectory) -> None:
        """Offer what is in `run`."""
        self._run, self._heads = run, run.heads
        self._entries: dict[tuple[int, int], _Entry] = {}

    def rounds(self) -> list[int]:
        """Rounds that are committed now, ascending."""
        return self._heads.rounds()

    def record(self, round: int | None = None) -> HeadRecord:
        """A round's record; the latest if none is given.

        Raises:
            RunError: if there is no such round, or its record was altered.
        """
        rounds = self.rounds()
        if not rounds:
            raise RunError("the hub has no head yet: the run's coordinator has not begun")
        if round is not None and round not in rounds:
            raise RunError(f"the hub has no round {round}; it has {rounds[0]} to {rounds[-1]}")
        try:
            return self._heads.record(round)
        except RunError:
            which = rounds[-1] if round is None else round
            raise RunError(
                f"the record of round {which} was altered on the hub's disk; tell its operator"
            ) from None

    @property
    def per_width(self) -> bool:
        """Whether the run has an adapter for each width, and so no single model."""
        return self._run.recipe.quantize.per_width

    def head(self, round: int) -> str:
        """The hash of a round's head; raises as `record`."""
        return self._entry(round).head

    def recipe(self) -> str:
        """The run's recipe as TOML, without what concerns the coordinator's own data."""
        recipe: Recipe = self._run.recipe
        return dump(recipe.model_copy(update={"node": (), "evaluate": EvaluateSection()}))

    def log(self, record: HeadRecord, since: int | None) -> list[ShelfFile]:
        """Records and residuals of all rounds after `since` up to a head, and its adapter.

        Raises:
            RunError: if the head does not build on `since`.
        """
        first = 0 if since is None else since + 1
        if since is not None:
            before = self.record(since).history
            if since > record.round or record.history[: len(before)] != before:
                raise RunError(f"round {record.round} does not build on round {since}")
        files = list(self._rounds(range(first, record.round + 1)))
        if since == record.round:
            files.append(self._entry(record.round).record)
        return [*files, self._ledger_file(record.round, ADAPTER, record.adapter)]

    def snapshot(self, record: HeadRecord) -> Snapshot | None:
        """The latest snapshot that a head can be reached from, if one was taken."""
        return self._heads.snapshot(record.history)

    def after_snapshot(self, record: HeadRecord, snapshot: Snapshot) -> list[ShelfFile]:
        """A snapshot's file, and of all rounds after it what `log` gives."""
        covered = self._covered_by(record, snapshot)
        name = f"ledger/{covered:04d}/snapshot-{snapshot.digest}.safetensors"
        weights = _measured(name, snapshot.path, snapshot.digest)
        later = self.log(record, since=covered)
        if covered < record.round:
            later.insert(0, self._entry(covered).record)
        return [weights, *later]

    def _covered_by(self, record: HeadRecord, snapshot: Snapshot) -> int:
        """The first round with the history that a snapshot stands for."""
        rounds = [round for round in self.rounds() if round <= record.round]
        return next(one for one in rounds if self._entry(one).covers == snapshot.covers)

    def _rounds(self, rounds: Sequence[int]) -> Iterator[ShelfFile]:
        for round in rounds:
            entry = self._entry(round)
            if entry.residual:
                yield self._ledger_file(round, RESIDUAL, entry.residual)
            yield entry.record

    def _entry(self, round: int) -> _Entry:
        path = self._heads.folder(round) / RECORD
        key = round, path.stat().st_mtime_ns
        if key not in self._entries:
            content, record = path.read_bytes(), self.record(round)
            name, digest = f"ledger/{round:04d}/{RECORD}", hashlib.sha256(content).hexdigest()
            folded = (path.parent / RESIDUAL).exists()
            self._entries[key] = _Entry(
                record.hash,
                len(record.history),
                record.history[-1] if folded else "",
                ShelfFile(name, path, len(content), digest),
            )
        return self._entries[key]

    def _ledger_file(self, round: int, name: str, digest: str) -> ShelfFile:
        return _measured(f"ledger/{round:04d}/{name}", self._heads.folder(round) / name, digest)


def pieces(file: ShelfFile, offset: int) -> Iterator[bytes]:
    """A file's bytes from `offset` on, of which the last are given only if the whole is sound.

    So an altered file is never sent complete, though it is read only once.

    Raises:
        RunError: if it was altered.
        OSError: if it can't be read.
    """
    hasher, position = hashlib.sha256(), 0
    with file.path.open("rb") as source:
        while position < file.size:
            end = offset if position < offset else file.size
            block = source.read(min(CHUNK, end - position))
            hasher.update(block)
            position += len(block)
            if not block or (position == file.size and hasher.hexdigest() != file.digest):
                raise RunError(f"{file.name} was altered on the hub's disk; tell its operator")
            if position > offset:
                yield block


def _measured(name: str, path: Path, digest: str) -> ShelfFile:
    return ShelfFile(name, path, path.stat().st_size, digest)
