"""Stands before the hub: who calls, how much each may ask for, and how long anyone may stall.

Every call is taken as a stream, whatever it is for the caller: so it is known who calls before a
byte of the request is read, and neither a request that trickles in nor a reader that stops reading
keeps its place.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from fedlora.adapters import EngineError, FedloraError, IdentityError, WireError
from fedlora.protos.statuses import status_of
from fedlora.protos.tokens import Tokens

STREAMS_PER_PARTY = 4
STREAMS = 64  # of all parties together
REQUEST = 10.0  # seconds in which a request must have come
STALL = 60.0  # seconds in which a reader must take the next message

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Identify = Callable[[Context], str]


def by_certificate(context: Context) -> str:
    """The name in the certificate, which TLS has checked already."""
    [name] = context.auth_context()["x509_common_name"]
    return name.decode()


def by_token(tokens: Tokens, context: Context) -> str:
    """The owner of the token that came with the call.

    Raises:
        IdentityError: if there is none, or it is nobody's.
    """
    metadata = dict(context.invocation_metadata() or ())
    scheme, _, token = str(metadata.get("authorization", "")).partition(" ")
    if scheme != "Bearer":
        raise IdentityError(
            "the hub asks for a token: ask its operator for one, and name its file with "
            "--token-file"
        )
    return tokens.owner(token)


def by_place(context: Context) -> str:
    """Everybody on this machine is one."""
    return "this machine"


class Doorkeeper(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # at run time it has none
    """Lets calls through to a service."""

    def __init__(self, identify: Identify, stall: float = STALL, request: float = REQUEST) -> None:
        """Ask `identify` who calls.

        Args:
            identify: gives a name, or raises IdentityError.
            stall: seconds in which a reader must take the next message.
            request: seconds in which a request must have come.
        """
        self._identify, self._stall, self._request = identify, stall, request
        self._streams: Counter[str] = Counter()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """What gRPC calls for each call that comes in."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return grpc.stream_stream_rpc_method_handler(
            partial(self._serve, handler), response_serializer=handler.response_serializer
        )

    async def _serve(self, handler: Any, requests: AsyncIterator[bytes], context: Context) -> None:
        try:
            with self._seat(self._identify(context)):
                request = await self._read(handler, requests)
                async with aclosing(_replies(handler, request, context)) as replies:
                    async for reply in replies:
                        async with asyncio.timeout(self._stall):
                            await context.write(reply)
        except FedloraError as error:
            await context.abort(status_of(error), str(error))
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the caller has stalled")
        except OSError as error:
            reason = error.strerror or type(error).__name__
            await context.abort(
                grpc.StatusCode.ABORTED, f"the hub cannot read a file now: {reason}"
            )

    @contextmanager
    def _seat(self, name: str) -> Iterator[None]:
        """One of the caller's places.

        Raises:
            EngineError: if there is none.
        """
        taken, all_taken = self._streams[name], self._streams.total()
        if taken >= STREAMS_PER_PARTY or all_taken >= STREAMS:
            raise EngineError(
                f"the hub is busy: {name} has {taken} of {STREAMS_PER_PARTY} streams, all parties "
                f"together {all_taken} of {STREAMS}; end one, or try again later"
            )
        self._streams[name] += 1
        try:
            yield
        finally:
            self._streams[name] -= 1
            self._streams += Counter()  # forget who has none

    async def _read(self, handler: Any, requests: AsyncIterator[bytes]) -> Any:
        async with asyncio.timeout(self._request):
            content = await anext(aiter(requests), b"")
        try:
            return handler.request_deserializer(content)
        except DecodeError:
            raise WireError("the request is no message that this service knows") from None


async def _replies(handler: Any, request: Any, context: Context) -> AsyncGenerator[Any, None]:
    if handler.response_streaming:
        async with aclosing(handler.unary_stream(request, context)) as replies:
            async for reply in replies:
                yield reply
    else:
        yield await handler.unary_unary(request, context)
