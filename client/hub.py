"""The model hub as a party sees it that takes the model and doesn't train.

Nothing here loads a model: `fedlora.client.pulling` turns what comes into files.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import grpc

from fedlora.adapters.errors import EngineError, IdentityError, WireError
from fedlora.protos.addresses import is_loopback, split
from fedlora.protos.clientkeys import ClientKeys
from fedlora.protos.envelope import VerifyingKey
from fedlora.protos.hub_pb2 import (
    DescribeRequest,
    Description,
    HeadNews,
    PullReply,
    PullRequest,
    WatchReply,
    WatchRequest,
)
from fedlora.protos.hub_pb2_grpc import HubStub
from fedlora.protos.keyfiles import read
from fedlora.protos.statuses import error_of

from .diagnosis import diagnose

SILENCE = 45.0  # seconds without a sign of life after which the hub is taken for dead
PATIENCE = 30.0  # seconds in which a hub that was there may come back
PAUSE = 0.5  # seconds before it is asked again

Reply = TypeVar("Reply")
Stream: TypeAlias = Generator[Reply, None, None]

_OPTIONS = [
    ("grpc.max_receive_message_length", 32 << 20),  # an offer of some 100,000 files
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),  # a watch may have nothing to say for long
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


class Interrupted(Exception):
    """A stream broke off, by nobody's decision: asking again may help."""


class Hub:
    """One hub.

    Attributes:
        address: host:port.
        trusted: the coordinator's key, which offers must be signed with; None to look at none.
    """

    def __init__(
        self,
        address: str,
        keys: ClientKeys | None = None,
        token: str | None = None,
        silence: float = SILENCE,
        patience: float = PATIENCE,
    ) -> None:
        """Get ready to call; nothing is sent yet.

        Args:
            address: host:port.
            keys: of this party, for TLS; None for a hub on this machine alone.
            token: by which the hub knows this party, if it asks for one.
            silence: seconds without a sign of life after which the hub is taken for dead.
            patience: seconds in which a hub that was there may come back.

        Raises:
            ValueError: if the address is none.
            IdentityError: if others could listen in.
        """
        host, _ = split(address)
        if keys is None and not is_loopback(host):
            raise IdentityError(
                f"{address} is another machine: name a folder with its ca.crt with --keys, so that "
                "nobody can listen in or answer in its place"
            )
        self.address, self._keys = address, keys
        self.trusted: VerifyingKey | None = keys.coordinator if keys else None
        self._metadata = [("authorization", f"Bearer {token}")] if token else []
        self._silence, self._patience = silence, patience
        self._channel = _channel(address, keys)
        self._stub: Any = HubStub(self._channel)

    def __enter__(self) -> "Hub":
        """Hang up on leaving."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Hang up."""
        self._channel.close()

    def describe(self) -> Description:
        """What there is.

        Raises:
            FedloraError: of the class that the hub refused with.
            EngineError: if it doesn't answer.
        """

        def once() -> Stream[Description]:
            yield self._checked(
                lambda: self._stub.Describe(
                    DescribeRequest(), metadata=self._metadata, timeout=self._silence
                )
            )

        [description] = self._patiently(once)
        return description

    def watch(self, after: int | None = None) -> Stream[HeadNews]:
        """The latest head, or all after a round that is known; then each as it is committed.

        A hub that is started again is found again, and no head is missed or told twice.

        Raises:
            FedloraError: of the class that the hub refused with.
            EngineError: if it doesn't answer, or falls silent for good.
        """
        known = after

        def once() -> Stream[WatchReply]:
            request = WatchRequest(after=known)
            yield from self._stream(self._stub.Watch(request, metadata=self._metadata))

        for reply in self._patiently(once):
            if reply.HasField("news"):
                known = reply.news.round
                yield reply.news

    def pull(self, request: Callable[[], PullRequest]) -> Stream[PullReply]:
        """The offer and the pieces that a request brings; from the offer on again where it breaks.

        Args:
            request: makes the request, from what is held by then.

        Raises:
            FedloraError: of the class that the hub refused with.
            EngineError: if it doesn't answer, or falls silent for good.
        """
        yield from self._patiently(
            lambda: self._stream(self._stub.Pull(request(), metadata=self._metadata)),
            counts=lambda reply: not reply.HasField("offer"),
        )

    def _patiently(
        self,
        once: Callable[[], Stream[Reply]],
        counts: Callable[[Reply], bool] = lambda reply: True,
    ) -> Stream[Reply]:
        """Replies of one call after the other, until one ends well or patience does.

        Only a hub that has answered is waited for: at the first call it is there or it isn't.
        Patience begins anew with each reply that `counts` as headway.
        """
        heard: float | None = None
        while True:
            try:
                with closing(once()) as replies:
                    for reply in replies:
                        if heard is None or counts(reply):
                            heard = time.monotonic()
                        yield reply
                return
            except Interrupted as error:
                if heard is None:
                    diagnose(self.address, self._keys)
                    raise EngineError(f"no hub answers at {self.address}: {error}") from None
                if time.monotonic() - heard > self._patience:
                    raise EngineError(
                        f"the hub at {self.address} is gone: {error}; what came so far is kept, "
                        "so try again later"
                    ) from None
            time.sleep(PAUSE)

    def _stream(self, call: Any) -> Stream[Any]:
        """Messages of a stream, which is cut when it falls silent."""
        try:
            while True:
                watchdog = threading.Timer(self._silence, call.cancel)
                watchdog.daemon = True
                watchdog.start()
                try:
                    message = self._checked(lambda: next(call, None))
                finally:
                    watchdog.cancel()
                if message is None:
                    return
                yield message
        finally:
            call.cancel()

    def _checked(self, receive: Callable[[], Reply]) -> Reply:
        try:
            return receive()
        except grpc.RpcError as error:
            status, details = error.code(), error.details() or ""
            if refused := error_of(status, details):
                raise refused from None
            if status == grpc.StatusCode.UNIMPLEMENTED:
                raise WireError(f"{self.address} is no model hub ({details})") from None
            raise Interrupted(details or status.name) from None


def _channel(address: str, keys: ClientKeys | None) -> grpc.Channel:
    if keys is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    key, certificate = keys.own or (None, None)
    credentials = grpc.ssl_channel_credentials(read(keys.authority), key, certificate)
    return grpc.secure_channel(address, credentials, options=_OPTIONS)
