"""A message survives the way in pieces, whatever it holds."""

from collections.abc import Iterator

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedlora.adapters import WireError
from fedlora.client.parcel import CHUNK, assemble, pieces
from fedlora.protos.worker_pb2 import Piece

SIZES = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7)


@pytest.fixture(autouse=True)
def _task() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 5, 1, 3


def content() -> RecordDict:
    arrays = {
        f"array {size}": Array("uint8", (size,), "any", bytes(i % 251 for i in range(size)))
        for size in SIZES
    }
    scalars = {"int": 2**40, "float": 0.1, "many": [1.5, -2.0]}
    config = {"text": "ä", "flag": True, "raw": b"\x00\xff", "list": ["a", "b"], "none": [0]}
    return RecordDict(
        {
            "tensors": ArrayRecord(arrays),
            "more": ArrayRecord({"odd": Array("bfloat16", (2, 0, 3), "ours", b"12345")}),
            "metrics": MetricRecord(scalars),
            "config": ConfigRecord(config),
        }
    )


def wire(message: Message) -> Iterator[Piece]:
    """The pieces as they arrive: from bytes."""
    for piece in pieces(message):
        raw = piece.SerializeToString()
        assert len(raw) < 4 << 20  # gRPC's limit
        yield Piece.FromString(raw)


def test_records_arrays_and_metadata_arrive_as_they_were_sent() -> None:
    sent = Message(content(), 7, "train.special", ttl=12.5, group_id="4")
    sent.metadata.__dict__["_message_id"] = "abc"
    got = assemble(wire(sent))
    assert got.content == content()
    assert vars(got.metadata) == vars(sent.metadata)
    assert {len(array.data) for array in sent.content["tensors"].values()} == {0}  # type: ignore


def test_an_error_reply_arrives() -> None:
    asked = Message(RecordDict(), 7, "query")
    got = assemble(wire(Message(Error(2, "no such file"), reply_to=asked)))
    assert (got.error.code, got.error.reason) == (2, "no such file")


def test_a_message_that_breaks_off_is_refused() -> None:
    whole = list(wire(Message(content(), 7, "train")))
    for cut in (0, 1, len(whole) - 1):
        with pytest.raises(WireError, match="broke off"):
            assemble(iter(whole[:cut]))
