"""What passes the gate: a registered node's Fleet calls and the health check, nothing else.

Flower serves nodes, its control of runs and its executors on one port, and of those only the nodes'
part asks who calls. So a request is never passed on as it came: its path must be one of a few plain
ones, and what goes to Flower is written anew from it.
"""

import logging
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx

from .pace import Message, Pace, Receive, Send

FLEET = re.compile(rb"/v1/fleet/[a-z]+(-[a-z]+)*")
HEALTH = b"/health"
KEY_HEADER = b"flwr-public-key"  # Flower checks the signature by this key; here it must be known
BODY = 64 << 20  # bytes; Flower sends tensors in pieces of 5 MiB, and a bundle has at most 10 MB

_ASKED = re.compile(rb"content-type|accept|accept-encoding|flwr-.*")
_ANSWERED = re.compile(rb"content-type|content-length|content-encoding|flwr-.*")

log = logging.getLogger("fedlora.gate")


class Refusal(Exception):
    """A request that does not pass.

    Attributes:
        status: of HTTP.
        reason: told to the peer and to the log.
    """

    def __init__(self, status: int, reason: str) -> None:
        """See the attributes."""
        super().__init__(reason)
        self.status, self.reason = status, reason


class Proxy:
    """An ASGI app that answers with what Flower answers on loopback.

    Attributes:
        admitted: the keys that may call, as Flower's nodes send them; None while nobody may yet.
    """

    def __init__(self, upstream: httpx.AsyncClient) -> None:
        """Pass on to `upstream`, whose base URL is Flower's address, when somebody is admitted."""
        self.admitted: frozenset[bytes] | None = None
        self._upstream = upstream

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        pace, answer = Pace(receive, send), _Answer()
        try:
            await self._pass(scope, pace, answer)
        except Refusal as refusal:
            await self._refuse(scope, pace, answer, refusal)
        except TimeoutError:
            await self._refuse(scope, pace, answer, Refusal(408, "too slow"))
        except httpx.TimeoutException:
            await self._refuse(scope, pace, answer, Refusal(504, "Flower took too long"))
        except httpx.TransportError as error:
            reason = f"Flower does not answer: {type(error).__name__}"
            await self._refuse(scope, pace, answer, Refusal(502, reason))

    async def _pass(self, scope: dict[str, Any], pace: Pace, answer: "_Answer") -> None:
        """Ask Flower the same, and hand on its answer piece by piece."""
        path = self._admit(scope)
        size = _size(scope["headers"], BODY if scope["method"] == "POST" else 0)
        headers = [pair for pair in scope["headers"] if _ASKED.fullmatch(pair[0])]
        request = self._upstream.build_request(
            scope["method"],
            path,
            headers=[*headers, (b"content-length", str(size).encode())],
            content=_body(pace) if size else b"",
        )
        response = await self._upstream.send(request, stream=True)
        try:
            answered = [(name.lower(), value) for name, value in response.headers.raw]
            answered = [pair for pair in answered if _ANSWERED.fullmatch(pair[0])]
            await answer.begin(pace, response.status_code, answered)
            async for piece in response.aiter_raw():
                await pace.send({"type": "http.response.body", "body": piece, "more_body": True})
            await pace.send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()

    def _admit(self, scope: dict[str, Any]) -> str:
        """The path to ask for.

        Raises:
            Refusal: if this is none of a node's calls, or of a node that nobody registered.
        """
        path: bytes = scope["raw_path"]
        method = "GET" if path == HEALTH else "POST"
        if (path != HEALTH and not FLEET.fullmatch(path)) or scope["method"] != method:
            raise Refusal(404, "no such path")
        if self.admitted is None:
            raise Refusal(503, "not ready yet")  # and nodes try again
        keys = [value for name, value in scope["headers"] if name == KEY_HEADER]
        if (path != HEALTH and len(keys) != 1) or not self.admitted.issuperset(keys):
            raise Refusal(401, "no registered key")
        return path.decode()

    async def _refuse(
        self, scope: dict[str, Any], pace: Pace, answer: "_Answer", refusal: Refusal
    ) -> None:
        """Log it, and answer unless an answer has begun, which uvicorn then cuts off."""
        peer, path = (scope["client"] or ("?",))[0], scope["raw_path"][:200]
        log.warning("%s %s %r: %s", peer, scope["method"], path, refusal.reason)
        if answer.begun:
            return
        text = refusal.reason.encode()
        headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
        headers.append((b"content-length", str(len(text)).encode()))
        with suppress(TimeoutError):  # a peer that doesn't listen need not hear it
            await answer.begin(pace, refusal.status, headers)
            await pace.send({"type": "http.response.body", "body": text})


class _Answer:
    """Whether an answer has begun: after that there is no other."""

    begun = False

    async def begin(self, pace: Pace, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.begun = True
        await pace.send({"type": "http.response.start", "status": status, "headers": headers})


def _size(headers: list[tuple[bytes, bytes]], limit: int) -> int:
    """The announced size of a request's body.

    Raises:
        Refusal: if none is announced, or it is over the limit.
    """
    found = dict(headers)
    if b"transfer-encoding" in found:
        raise Refusal(411, "a body needs its size announced")
    size = int(found.get(b"content-length", b"0"))  # the server has checked that it is a number
    if size > limit:
        raise Refusal(413, f"{size} bytes, the limit is {limit}")
    return size


async def _body(pace: Pace) -> AsyncIterator[bytes]:
    more = True
    while more:
        message: Message = await pace.receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "gone before its request was whole")
        more = message.get("more_body", False)
        yield message.get("body", b"")
