"""The short-lived side of a warm node: a message to the worker, and the reply back.

Knows no torch; a worker that dies or falls silent is reported at once, long before Flower would
notice.
"""

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
from flwr.app import Message

from fedlora.adapters.errors import EngineError, WireError
from fedlora.protos.worker_pb2 import Piece
from fedlora.protos.worker_pb2_grpc import WorkerStub

from .channel import SILENCE, START, connect
from .parcel import assemble, pieces

_ENDED = "ended while it worked on this message; it is started again"
_REASONS = {
    grpc.StatusCode.UNAVAILABLE: _ENDED,
    grpc.StatusCode.CANCELLED: _ENDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: "is busy with other messages",
}


def relay(
    message: Message, socket: Path, start: float = START, silence: float = SILENCE
) -> Message:
    """The worker's reply to a message, whose arrays are empty afterwards.

    Args:
        message: from the coordinator.
        socket: where the worker listens.
        start: seconds that the worker may need to come up.
        silence: seconds without a beat after which it is given up.

    Raises:
        EngineError: if the worker doesn't come up, dies, or falls silent.
    """
    with connect(socket) as channel:
        try:
            grpc.channel_ready_future(channel).result(start)
            return assemble(_Conversation(WorkerStub(channel), message, silence).replies())
        except grpc.FutureTimeoutError:
            reason = f"didn't come up within {start:g} s"
        except TimeoutError:
            reason = f"was silent for {silence:g} s; it is killed and started again"
        except WireError as error:
            reason = str(error)
        except grpc.RpcError as error:
            reason = _REASONS.get(error.code(), f"failed: {error.code()} {error.details()}")
    raise EngineError(f"the node's worker {reason}")


class _Conversation:
    """One call: alive as long as pieces go out or come in."""

    def __init__(self, worker: WorkerStub, message: Message, silence: float) -> None:
        self._silence = silence
        self._alive = time.monotonic()
        self._inbox: queue.Queue[Piece | Exception | None] = queue.Queue(4)
        self._call = worker.Work(self._sent(message))
        threading.Thread(target=self._listen, daemon=True).start()

    def replies(self) -> Iterator[Piece]:
        """The pieces of the reply.

        Raises:
            RpcError: if the connection ended.
            TimeoutError: after `silence` seconds in which nothing moved.
        """
        while True:
            try:
                found = self._inbox.get(timeout=0.2)
            except queue.Empty:
                if time.monotonic() - self._alive > self._silence:
                    self._call.cancel()
                    raise TimeoutError from None
                continue
            if found is None:
                return
            if isinstance(found, Exception):
                raise found
            if not found.HasField("beat"):
                yield found

    def _sent(self, message: Message) -> Iterator[Piece]:
        """The pieces of the message; gRPC asks for one when the worker has room for it."""
        for piece in pieces(message):
            self._alive = time.monotonic()
            yield piece

    def _listen(self) -> None:
        try:
            for piece in self._call:
                self._alive = time.monotonic()
                self._inbox.put(piece)
            self._inbox.put(None)
        except grpc.RpcError as error:
            self._inbox.put(error)
