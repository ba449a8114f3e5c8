"""The model hub: a gRPC service from which parties that don't train take the model.

It reads one run's ledger, which another process may be writing, and streams files from disk in
small pieces, so that its memory does not grow with the model or with its callers.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from fedlora.adapters import RunError
from fedlora.protos.envelope import SigningKey
from fedlora.protos.hub_pb2 import (
    DescribeRequest,
    Description,
    HeadNews,
    HubLimits,
    Piece,
    PullReply,
    PullRequest,
    RoundHead,
    WatchReply,
    WatchRequest,
)
from fedlora.protos.hub_pb2_grpc import HubServicer
from fedlora.strategies.records import HeadRecord

from .doorkeeper import STREAMS_PER_PARTY
from .offers import Offers, held_of
from .rundir import RunDirectory
from .shelf import CHUNK, Shelf, pieces

HEARTBEAT = 10.0  # seconds
POLL = 0.5  # seconds between looks into the ledger


class HubService(HubServicer):
    """Serves one run."""

    def __init__(
        self, run: RunDirectory, key: SigningKey | None = None, heartbeat: float = HEARTBEAT
    ) -> None:
        """Serve `run`.

        Args:
            run: whose heads to give out.
            key: the coordinator's, to sign what is offered.
            heartbeat: seconds between signs of life in a stream that has nothing to tell.
        """
        self._name, self._model = run.recipe.name, run.recipe.model.source
        self._shelf, self._heartbeat = Shelf(run), heartbeat
        self._offers = Offers(run, self._shelf, key)

    async def Describe(self, request: DescribeRequest, context: Any) -> Description:
        """What there is."""
        self._require(request.run)
        return await asyncio.to_thread(self._description)

    async def Pull(self, request: PullRequest, context: Any) -> AsyncIterator[PullReply]:
        """An offer, then what the caller lacks of its files."""
        self._require(request.run)
        offering = asyncio.ensure_future(self._offers.offer(request))
        try:
            while not (await asyncio.wait({offering}, timeout=self._heartbeat))[0]:
                yield PullReply()
        finally:
            offering.cancel()
        signed, files = offering.result()
        yield PullReply(offer=signed)
        held = held_of(request)
        for index, file in enumerate(files):
            offset = held.setdefault(file.digest, 0)
            held[file.digest] = file.size  # what is alike is sent once
            blocks = pieces(file, offset)
            while offset < file.size:
                block = await asyncio.to_thread(next, blocks)
                yield PullReply(piece=Piece(file=index, offset=offset, content=block))
                offset += len(block)

    async def Watch(self, request: WatchRequest, context: Any) -> AsyncIterator[WatchReply]:
        """The latest head, or all after the one that the caller knows; then each as it comes."""
        self._require(request.run)
        known = request.after if request.HasField("after") else None
        spoken = float("-inf")
        while True:
            rounds = await asyncio.to_thread(self._shelf.rounds)
            if known is not None and rounds and rounds[-1] < known:
                known = rounds[-1]  # what was damaged is set aside, and made again
            for round in rounds[-1:] if known is None else [one for one in rounds if one > known]:
                yield WatchReply(news=_news(await asyncio.to_thread(self._shelf.record, round)))
                known, spoken = round, time.monotonic()
            if time.monotonic() - spoken >= self._heartbeat:
                yield WatchReply()
                spoken = time.monotonic()
            await asyncio.sleep(POLL)

    def _require(self, run: str) -> None:
        if run not in ("", self._name):
            raise RunError(f"this hub serves the run {self._name}, not {run!r}")

    def _description(self) -> Description:
        rounds = self._shelf.rounds()
        described = Description(run=self._name, model=self._model)
        described.limits.CopyFrom(
            HubLimits(streams=STREAMS_PER_PARTY, chunk=CHUNK, heartbeat=self._heartbeat)
        )
        if rounds:
            latest = self._shelf.record(rounds[-1])
            described.base = latest.base
            described.forms.extend(self._offers.available(latest))
        heads = (RoundHead(round=one, head=self._shelf.head(one)) for one in rounds)
        described.rounds.extend(heads)
        return described


def _news(record: HeadRecord) -> HeadNews:
    how = record.proceedings
    return HeadNews(
        run=record.run,
        round=record.round,
        head=record.hash,
        nodes=len(how.admitted),
        receipt=how.worst_receipt,
        metrics=how.metrics,
    )
