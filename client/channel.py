"""How both sides of a warm node are connected, and how one sees that its worker lives."""

from pathlib import Path

import grpc

from fedlora.protos.worker_pb2 import LookRequest, Standing
from fedlora.protos.worker_pb2_grpc import WorkerStub

from .private_socket import require_own, target

BEAT = 1.0  # seconds between two signs of life of a worker that works on a message
SILENCE = 30.0  # seconds without a sign of life after which it counts as hung
START = 120.0  # seconds for a worker to come up, on a busy machine
OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),  # a message's opening may hold a long task
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def connect(socket: Path) -> grpc.Channel:
    """A channel to the worker at `socket`.

    Raises:
        EngineError: if the socket may be another user's.
    """
    require_own(socket)
    return grpc.insecure_channel(target(socket), OPTIONS)


def look(socket: Path, seconds: float) -> Standing | None:
    """How things stand with the worker at `socket`; None if it doesn't answer in time.

    Raises:
        EngineError: if the socket may be another user's.
    """
    with connect(socket) as channel:
        try:
            standing: Standing = WorkerStub(channel).Look(
                LookRequest(), timeout=seconds, wait_for_ready=True
            )
        except grpc.RpcError:
            return None
        return standing
