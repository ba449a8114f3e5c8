"""Lets files that have come whole take their place in a folder.

A pull that dies half way leaves each file either where it was or where it belongs; the next one
finds out which.
"""

import json
import shutil
from collections import Counter
from pathlib import Path

from fedlora.adapters import WireError
from fedlora.recipes.loading import dump
from fedlora.recipes.schema import Recipe
from fedlora.strategies.heads import RECORD
from fedlora.strategies.records import HeadRecord

from .offers import CheckedOffer
from .pullfolder import HIDDEN, NOTE, RECIPE, PullFolder


class Settler:
    """Settles one offer, all of whose files are whole."""

    def __init__(self, place: PullFolder, offer: CheckedOffer) -> None:
        """Settle `offer` in `place`."""
        self._place, self._offer = place, offer
        self._uses = Counter(file.digest.hex() for file in offer.proto.files)

    def ledger(self, recipe: Recipe) -> None:
        """Round by round; a new one appears whole, as when it is committed.

        Raises:
            WireError: if the records are no chain, together with what is here.
        """
        self._check_chain()
        hidden, ledger = self._place.root / HIDDEN, self._place.root / "ledger"
        (hidden / RECIPE).write_text(dump(recipe), encoding="utf-8")
        (hidden / RECIPE).replace(self._place.root / RECIPE)
        ledger.mkdir(exist_ok=True)
        rounds: dict[str, list[tuple[str, str]]] = {}
        for file in self._offer.proto.files:
            rounds.setdefault(file.name.split("/")[1], []).append((file.name, file.digest.hex()))
        for round, files in sorted(rounds.items(), key=lambda item: int(item[0])):
            fresh = self._place.root if (ledger / round).exists() else hidden / "fresh"
            shutil.rmtree(hidden / "fresh", ignore_errors=True)
            for name, digest in files:
                self._put(name, digest, fresh)
            if not (ledger / round).exists():
                (fresh / "ledger" / round).rename(ledger / round)
        shutil.rmtree(hidden / "fresh", ignore_errors=True)
        self._place.parts.clear()

    def merged(self) -> None:
        """File by file; those of an earlier pull that this one has not are removed."""
        proto, note = self._offer.proto, self._place.root / NOTE
        names = [file.name for file in proto.files]
        earlier = json.loads(note.read_text())["files"] if note.exists() else []
        said = {"run": proto.run, "round": proto.round, "head": proto.head}
        note.write_text(json.dumps({**said, "files": sorted({*earlier, *names})}, indent=1))
        for file in proto.files:
            self._put(file.name, file.digest.hex(), self._place.root)
        for name in set(earlier) - set(names):
            (self._place.root / name).unlink(missing_ok=True)
        note.write_text(json.dumps({**said, "files": names}, indent=1))
        self._place.parts.clear()

    def _put(self, name: str, digest: str, root: Path) -> None:
        """Copied if another file is made of the same bytes, or else moved."""
        if self._place.there.get(name) == digest:
            return
        part, target = self._place.parts.whole(digest), root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if part and self._uses[digest] == 1:
            part.replace(target)
            return
        self._uses[digest] -= 1
        scratch = self._place.root / HIDDEN / "copy"
        shutil.copyfile(self._sure(digest), scratch)
        scratch.replace(target)

    def _check_chain(self) -> None:
        """Each record must name the one before, where both are there."""
        records = {
            int(file.name.split("/")[1]): self._sure(file.digest.hex())
            for file in self._offer.proto.files
            if file.name.endswith(RECORD)
        }
        before: HeadRecord | None = None
        first = self._place.root / "ledger" / f"{min(records) - 1:04d}" / RECORD
        for path in [first] * first.exists() + [records[round] for round in sorted(records)]:
            try:
                record = HeadRecord.from_json(path.read_bytes())
            except ValueError as error:
                raise WireError(f"what the hub sent is no round's record: {error}") from None
            if before and record.round == before.round + 1 and record.parent != before.digest:
                raise WireError(f"round {record.round} does not follow the round before it")
            before = record

    def _sure(self, digest: str) -> Path:
        whole = self._place.whole(digest)
        assert whole is not None  # nothing settles before everything has come
        return whole
