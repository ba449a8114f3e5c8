"""Heads and updates as Flower messages: the one place that knows their layout.

A message's RecordDict holds a protobuf message as bytes in a ConfigRecord, the payloads that it
describes as flat arrays in an ArrayRecord (hundreds of small arrays cost Flower four times as much
as one), and metrics in a MetricRecord.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from google.protobuf.message import DecodeError

from fedlora.adapters import Adapter, Residual, WireError
from fedlora.protos import (
    Head,
    Hello,
    Introduction,
    Limits,
    Update,
    decode,
    describe,
    encode,
    verify,
)

from .heads import head_hash
from .payloads import adapter_tensors, read_adapter_tensors, read_residual_tensors

STYPE = "fedlora.safetensors"
_PROTO, _TENSORS, _METRICS, _ADAPTER = "fedlora", "tensors", "metrics", "adapter"


def pack(adapter: Adapter) -> ArrayRecord:
    """An adapter as Flower arrays: what `FedExLoRA.start` takes and what its result holds."""
    return _arrays({_ADAPTER: encode(adapter_tensors(adapter))})


def unpack(arrays: ArrayRecord) -> Adapter:
    """The adapter that `pack` packed.

    Raises:
        WireError: if the record holds something else.
    """
    payload = _payload(arrays, _ADAPTER)
    return read_adapter_tensors(decode(payload, describe(payload)))


def adapter_payload(arrays: ArrayRecord) -> bytes:
    """The safetensors bytes in a packed adapter."""
    return _payload(arrays, _ADAPTER)


@dataclass(frozen=True)
class ReceivedHead:
    """A head as a node received it.

    Attributes:
        proto: the message.
        payloads: safetensors bytes by name; checked when they are read.
        limits: what this node accepts.
    """

    proto: Head
    payloads: Mapping[str, bytes]
    limits: Limits

    @cached_property
    def adapter(self) -> Adapter:
        """The adapter to start from.

        Raises:
            WireError: if the payload was altered, or the parts don't hash to the announced head.
        """
        parts = self.proto.base, self.history, self.proto.adapter.digest.hex()
        if head_hash(*parts) != self.proto.head:
            raise WireError(f"head {self.proto.head[:12]} is not made of the parts it came with")
        payload = self.payloads.get(_ADAPTER, b"")
        return read_adapter_tensors(decode(payload, self.proto.adapter, self.limits))

    @property
    def history(self) -> list[str]:
        """Digest of every residual folded into the base so far, oldest first."""
        return [digest.hex() for digest in self.proto.history]

    @property
    def residual_payloads(self) -> dict[str, bytes]:
        """The residuals that came along, by digest, each checked.

        Raises:
            WireError: if one was altered.
        """
        checked = {}
        for manifest in self.proto.residuals:
            digest = manifest.digest.hex()
            verify(self.payloads.get(digest, b""), manifest, self.limits)
            checked[digest] = self.payloads[digest]
        return checked

    @property
    def residuals(self) -> list[dict[str, Residual]]:
        """The residuals that came along, by module, oldest first."""
        return [
            read_residual_tensors(
                decode(self.payloads.get(one.digest.hex(), b""), one, self.limits)
            )
            for one in self.proto.residuals
        ]


def head_content(
    head: Head, adapter: bytes, residuals: Sequence[bytes], config: ConfigRecord
) -> RecordDict:
    """A head with its payloads, and `config` beside for the node's own use."""
    payloads = {_ADAPTER: adapter}
    for manifest, payload in zip(head.residuals, residuals, strict=True):
        payloads[manifest.digest.hex()] = payload
    return RecordDict(
        {
            _PROTO: ConfigRecord({"head": head.SerializeToString()}),
            _TENSORS: _arrays(payloads),
            "config": config,
        }
    )


def open_head(message: Message, limits: Limits | None = None) -> ReceivedHead:
    """The head in a message from the coordinator.

    Raises:
        WireError: if the message holds none.
    """
    proto = Head()
    _parse(message.content, "head", proto)
    arrays = message.content.array_records[_TENSORS]
    payloads = {name: _payload(arrays, name) for name in arrays}
    return ReceivedHead(proto, payloads, limits or Limits())


def reply_update(
    message: Message, adapter: Adapter, *, node: str, examples: int, metrics: Mapping[str, float]
) -> Message:
    """A node's reply to a head: its trained adapter, signed off with whose and from which head."""
    head = open_head(message).proto
    payload = encode(adapter_tensors(adapter))
    update = Update(
        run=head.run,
        round=head.round + 1,
        base=head.base,
        head=head.head,
        node=node,
        examples=examples,
        adapter=describe(payload),
    )
    content = RecordDict(
        {
            _PROTO: ConfigRecord({"update": update.SerializeToString()}),
            _TENSORS: _arrays({_ADAPTER: payload}),
            _METRICS: MetricRecord(dict(metrics)),
        }
    )
    return Message(content, reply_to=message)


def reply_metrics(message: Message, metrics: Mapping[str, float]) -> Message:
    """A node's reply with metrics alone."""
    return Message(RecordDict({_METRICS: MetricRecord(dict(metrics))}), reply_to=message)


def open_update(message: Message) -> tuple[Update, bytes]:
    """A node's update and its payload, both unchecked.

    Raises:
        WireError: if the message holds none.
    """
    update = Update()
    _parse(message.content, "update", update)
    try:
        return update, _payload(message.content.array_records[_TENSORS], _ADAPTER)
    except KeyError:
        raise WireError("the reply carries no tensors") from None


def hello_content(hello: Hello) -> RecordDict:
    """The coordinator's first words to a node."""
    return RecordDict({_PROTO: ConfigRecord({"hello": hello.SerializeToString()})})


def open_hello(message: Message) -> Hello:
    """The coordinator's first words.

    Raises:
        WireError: if the message holds none.
    """
    hello = Hello()
    _parse(message.content, "hello", hello)
    return hello


def reply_introduction(message: Message, introduction: Introduction) -> Message:
    """A node's reply to the coordinator's first words."""
    record = ConfigRecord({"introduction": introduction.SerializeToString()})
    return Message(RecordDict({_PROTO: record}), reply_to=message)


def open_introduction(message: Message) -> Introduction:
    """A node's introduction.

    Raises:
        WireError: if the message holds none.
    """
    introduction = Introduction()
    _parse(message.content, "introduction", introduction)
    return introduction


def metrics_of(message: Message) -> dict[str, float]:
    """The scalar metrics in a reply; empty if there are none."""
    record = message.content.metric_records.get(_METRICS) or MetricRecord()
    return {name: float(v) for name, v in record.items() if isinstance(v, int | float)}


def content_bytes(content: RecordDict) -> int:
    """Bytes of tensors in a message."""
    return sum(len(a.data) for record in content.array_records.values() for a in record.values())


def _arrays(payloads: Mapping[str, bytes]) -> ArrayRecord:
    return ArrayRecord(
        {
            name: Array(dtype="uint8", shape=(len(payload),), stype=STYPE, data=payload)
            for name, payload in payloads.items()
        }
    )


def _payload(arrays: ArrayRecord, name: str) -> bytes:
    array = arrays.get(name)
    if array is None or array.stype != STYPE:
        kind = "missing" if array is None else f"of type {array.stype!r}"
        raise WireError(f"array {name!r} is {kind}; expected {STYPE!r} bytes, as `pack` makes them")
    return array.data


def _parse(content: RecordDict, key: str, into: Head | Update | Hello | Introduction) -> None:
    raw = (content.config_records.get(_PROTO) or ConfigRecord()).get(key)
    try:
        into.ParseFromString(raw if isinstance(raw, bytes) else b"\xff")
    except DecodeError:
        raise WireError(f"the message carries no {key}, or not one of fedlora's") from None
