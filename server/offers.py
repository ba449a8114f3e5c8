"""Answers to a pull: which files make up the head, in the form that was asked for."""

import asyncio
from collections.abc import Mapping, Sequence

from fedlora.adapters import RunError, WireError
from fedlora.protos.envelope import SigningKey
from fedlora.protos.hub_pb2 import (
    FORM_CHEAPEST,
    FORM_LOG,
    FORM_MERGED,
    FORM_SNAPSHOT,
    Availability,
    Form,
    Offer,
    OfferedFile,
    PullRequest,
    SignedOffer,
)
from fedlora.strategies.heads import Snapshot
from fedlora.strategies.records import HeadRecord

from .making import MERGED, SNAPSHOT
from .rundir import RunDirectory
from .shelf import Shelf, ShelfFile
from .workshop import Workshop

_DIGEST = 32  # bytes


class Offers:
    """Makes the offers of one run's hub."""

    def __init__(self, run: RunDirectory, shelf: Shelf, key: SigningKey | None) -> None:
        """Offer what is on `shelf`, or can be made of `run`; signed, if there is a key."""
        self._shelf, self._workshop, self._key = shelf, Workshop(run), key

    async def offer(self, request: PullRequest) -> tuple[SignedOffer, list[ShelfFile]]:
        """What is offered, and where its files lie.

        Raises:
            FedloraError: if the request is wrong, or what it asks for can't be had.
        """
        held = held_of(request)
        asked = request.round if request.HasField("round") else None
        record = await asyncio.to_thread(self._shelf.record, asked)
        offer = Offer(run=record.run, round=record.round, head=record.hash)
        if request.form == FORM_MERGED:
            files, offer.form = await self._workshop.merged(record.round), FORM_MERGED
        else:
            files = await self._ledger_files(offer, record, request, held)
        for file in files:
            if held.get(file.digest, 0) > file.size:
                raise WireError(f"{file.name} has {file.size} bytes, and more are said to be held")
            digest = bytes.fromhex(file.digest)
            offer.files.append(OfferedFile(name=file.name, size=file.size, digest=digest))
        offer.record, offer.recipe = record.to_json(), self._shelf.recipe()
        body = offer.SerializeToString()
        signature = self._key.sign("offer", body) if self._key else b""
        return SignedOffer(offer=body, signature=signature), files

    def available(self, record: HeadRecord) -> list[Availability]:
        """Each form of a head, with what a party that has nothing would be sent."""
        snapshot = self._shelf.snapshot(record)
        folded = self._shelf.after_snapshot(record, snapshot) if snapshot else None
        sizes = {
            FORM_LOG: self._shelf.log(record, since=None),
            FORM_SNAPSHOT: folded or self._workshop.ready(record.round, SNAPSHOT),
            FORM_MERGED: self._workshop.ready(record.round, MERGED),
        }
        if self._shelf.per_width:  # there is no one model to fold or merge
            sizes = {FORM_LOG: sizes[FORM_LOG]}
        return [
            Availability(form=form, size=_missing(files or [], {})) for form, files in sizes.items()
        ]

    async def _ledger_files(
        self, offer: Offer, record: HeadRecord, request: PullRequest, held: Mapping[str, int]
    ) -> list[ShelfFile]:
        """Log or snapshot, as asked for or as is less to send; noted in `offer`."""
        if request.form not in (FORM_CHEAPEST, FORM_LOG, FORM_SNAPSHOT):
            raise WireError(f"{request.form} is no form of a model; expected one of {Form.keys()}")
        since = request.since if request.HasField("since") else None
        snapshot: Snapshot | None = None
        if request.form != FORM_LOG:
            snapshot = await asyncio.to_thread(self._shelf.snapshot, record)
        if request.form == FORM_SNAPSHOT and snapshot is None:
            if not record.history:
                raise RunError(f"round {record.round} has folded nothing yet: pull it as log")
            snapshot = await self._workshop.snapshot(record)
        folded = None
        if snapshot:
            folded = await asyncio.to_thread(self._shelf.after_snapshot, record, snapshot)
        if folded is None or snapshot is None or request.form == FORM_CHEAPEST:
            log = await asyncio.to_thread(self._shelf.log, record, since)
            if folded is None or snapshot is None or _missing(log, held) <= _missing(folded, held):
                offer.form = FORM_LOG
                if since is not None:
                    offer.since = since
                return log
        offer.form, offer.covers = FORM_SNAPSHOT, snapshot.covers
        return folded


def held_of(request: PullRequest) -> dict[str, int]:
    """Bytes that the caller holds, by digest of the file.

    Raises:
        WireError: if something is no digest.
    """
    if any(len(one.digest) != _DIGEST for one in request.held):
        raise WireError(f"a file that is held is named by its SHA-256, of {_DIGEST} bytes")
    return {one.digest.hex(): one.size for one in request.held}


def _missing(files: Sequence[ShelfFile], held: Mapping[str, int]) -> int:
    return sum(file.size - min(file.size, held.get(file.digest, 0)) for file in files)
