"""No peer holds a connection by being slow: each must send and take its bytes at a least pace.

Uvicorn waits for as long as anything trickles in, so a byte a second would hold a place for ever.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEAD = 10.0  # seconds for the head of a request, and for the next one on an open connection
PIECE = 32 << 10  # bytes
PATIENCE = 30.0  # seconds for each piece of a body; a cut of 10 s heals within


class Pace:
    """One request's `receive` and `send`, which end with a TimeoutError if the peer is too slow."""

    def __init__(self, receive: Receive, send: Send) -> None:
        """Wrap what the server hands to an app."""
        self._receive, self._send = receive, send
        self._waited, self._moved = 0.0, 0

    async def receive(self) -> Message:
        """The next message from the peer."""
        async with self._patience():
            message = await self._receive()
        self._count(message)
        return message

    async def send(self, message: Message) -> None:
        """Hand a message to the peer."""
        async with self._patience():
            await self._send(message)
        self._count(message)

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """Only time spent on waiting for the peer counts."""
        begun = time.monotonic()
        async with asyncio.timeout(PATIENCE - self._waited):
            yield
        self._waited += time.monotonic() - begun

    def _count(self, message: Message) -> None:
        self._moved += len(message.get("body", b""))
        if self._moved >= PIECE:
            self._moved, self._waited = 0, 0.0


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that drops a connection on which no whole request head comes in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch."""
        super().connection_made(transport)
        self._before: tuple[object, bool] = (None, True)
        self.loop.call_later(HEAD, self._look)

    def _look(self) -> None:
        """Drop the connection if it waits for the same head as at the last look."""
        if self.transport.is_closing():
            return
        now = (self.cycle, self.cycle is None or self.cycle.response_complete)
        if now == self._before and now[1]:
            self.transport.abort()
        else:
            self._before = now
            self.loop.call_later(HEAD, self._look)
