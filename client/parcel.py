"""A Flower message in pieces, for the way between ClientApp and worker.

Of the message's layout nothing is known here. Its arrays may hold hundreds of megabytes, so they
are dropped on one side as they appear on the other.
"""

from collections import deque
from collections.abc import Iterator
from io import BytesIO

from flwr.app import Array, Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

from fedlora.adapters.errors import WireError
from fedlora.protos.worker_pb2 import Opening, Piece

CHUNK = 1 << 20  # bytes; gRPC takes 4 MiB a message unless told otherwise


def pieces(message: Message) -> Iterator[Piece]:
    """The pieces of a message, whose arrays are empty afterwards."""
    arrays = _arrays(message)
    payloads = deque(array.data for array in arrays)
    for array in arrays:
        array.data = b""
    bare = message_to_proto(message).SerializeToString()
    yield Piece(opening=Opening(message=bare, sizes=[len(one) for one in payloads]))
    while payloads:
        payload = memoryview(payloads.popleft())
        for start in range(0, len(payload), CHUNK):
            yield Piece(chunk=bytes(payload[start : start + CHUNK]))
        del payload  # before the next piece is waited for


def assemble(received: Iterator[Piece]) -> Message:
    """The message that `pieces` took apart.

    Raises:
        WireError: if the pieces end early, or are not those of one message.
    """
    opening = _next(received).opening
    message = message_from_proto(ProtoMessage.FromString(opening.message))
    for array, size in zip(_arrays(message), opening.sizes, strict=True):
        buffer = BytesIO()  # hands out its bytes without a copy
        while buffer.tell() < size:
            buffer.write(_next(received).chunk)
        array.data = buffer.getvalue()
    return message


def _arrays(message: Message) -> list[Array]:
    if not message.has_content():
        return []
    records = message.content.array_records.values()
    return [array for record in records for array in record.values()]


def _next(received: Iterator[Piece]) -> Piece:
    piece = next(received, None)
    if piece is None:
        raise WireError("a message between ClientApp and worker broke off")
    return piece
