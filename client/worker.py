"""The process of a node that holds its model, data and folded base from message to message.

    python -m fedlora.client.worker SOCKET CONFIG

`fedlora join` starts it, with the node's configuration as JSON, and starts it again if it ends.
The main thread trains, one message after another; gRPC's threads take messages in and show that
the process lives. Whoever hangs up cancels the work at its next step. After an error that nobody
foresaw the process ends, since its model may be half changed.
"""

import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedlora.adapters import FedloraError
from fedlora.protos.worker_pb2 import Beat, Failure, LookRequest, Piece, Standing, Step
from fedlora.protos.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server

from .channel import BEAT, OPTIONS
from .handlers import make_app
from .node import Node
from .parcel import assemble, pieces
from .place import NodePlace, place_of
from .private_socket import OnlyOwner, target
from .training import StepReport

CALLERS = 8  # calls at once: one that is worked on, some that wait, and those that look
FAREWELL = 10.0  # seconds for a last reply to leave
KEEPALIVE = (  # a caller that is stopped, not dead, doesn't answer pings, and has hung up too
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class Cancelled(Exception):
    """The caller hung up."""


@dataclass(frozen=True)
class Job:
    """A message to be worked on, whether its caller is gone, and where its reply goes."""

    message: Message
    hung_up: threading.Event
    replies: "queue.Queue[Message]"


class Worker(WorkerServicer):
    """A node behind a gRPC service."""

    def __init__(self, place: NodePlace) -> None:
        """Serve the node at `place`."""
        node = Node(place, self._on_step)
        self._app = make_app(lambda context: node, self._on_failure, self._on_done)
        self._jobs: queue.Queue[Job] = queue.Queue()
        self._turn = threading.Lock()  # of the one message that is held and worked on
        self._hung_up = threading.Event()
        self._standing = Standing()

    def Work(self, requests: Iterator[Piece], context: grpc.ServicerContext) -> Iterator[Piece]:
        """Take a message in when its turn has come, and hand out its reply."""
        hung_up, replies = threading.Event(), queue.Queue[Message](1)
        if not context.add_callback(hung_up.set):  # gone already
            return
        while not self._turn.acquire(timeout=BEAT):
            yield Piece(beat=Beat())
        try:
            self._jobs.put(Job(assemble(requests), hung_up, replies))  # which gives the turn back
        except BaseException:
            self._turn.release()
            raise
        while True:
            with suppress(queue.Empty):
                yield from pieces(replies.get(timeout=BEAT))
                return
            yield Piece(beat=Beat())

    def Look(self, request: LookRequest, context: grpc.ServicerContext) -> Standing:
        """How things stand."""
        return self._standing

    def run(self) -> None:
        """Work on messages as they come.

        Raises:
            Exception: that nobody foresaw; the caller has it as an error reply by then.
        """
        while True:
            self._serve(self._jobs.get())
            self._turn.release()

    def _serve(self, job: Job) -> None:
        self._hung_up = job.hung_up
        try:
            job.replies.put(self._answer(job.message))
        except Cancelled:
            logging.warning("cancelled: the caller hung up")
        except Exception as error:
            reason = f"{type(error)}:<'{error}'>"
            failure = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason)
            job.replies.put(Message(failure, reply_to=job.message))
            raise

    def _answer(self, message: Message) -> Message:
        if self._hung_up.is_set():
            raise Cancelled
        known = message.metadata
        context = Context(known.run_id, known.dst_node_id, {}, RecordDict(), {})
        return self._app(message, context)

    def _on_step(self, name: str, report: StepReport) -> None:
        if self._hung_up.is_set():
            raise Cancelled
        self._tell(step=Step(**asdict(report)))

    def _on_failure(self, error: FedloraError) -> None:
        self._tell(failure=Failure(error=type(error).__name__, message=str(error)))

    def _on_done(self) -> None:
        self._tell(done=True)

    def _tell(self, **news: bool | Failure | Step) -> None:
        """Another standing in the old one's place: a thread may be sending that."""
        known = {field.name: value for field, value in self._standing.ListFields()}
        self._standing = Standing(**{**known, **news})


def serve(place: NodePlace, socket: Path) -> None:
    """Serve the node at `place` until something goes wrong."""
    worker = Worker(place)
    with ThreadPoolExecutor(CALLERS) as threads:
        server = grpc.server(
            threads,
            interceptors=[OnlyOwner(socket)],
            maximum_concurrent_rpcs=CALLERS,
            options=(*OPTIONS, *KEEPALIVE),
        )
        add_WorkerServicer_to_server(worker, server)
        usual = os.umask(0o177)
        server.add_insecure_port(target(socket))
        os.umask(usual)
        server.start()
        try:
            worker.run()
        finally:
            server.stop(FAREWELL).wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    serve(place_of(json.loads(sys.argv[2])), Path(sys.argv[1]))
