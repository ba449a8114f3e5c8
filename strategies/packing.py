"""What every message is made of: payloads as flat arrays, and one sealed protobuf message.

The protobuf message travels as bytes in a ConfigRecord, with its maker's signature; the payloads
that it describes as flat arrays in an ArrayRecord (hundreds of small arrays cost Flower four times
as much as one). The signature covers the payloads too, by their digests in the message.
"""

from collections.abc import Mapping
from typing import TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from google.protobuf.message import DecodeError, Message

from fedlora.adapters import Adapter, WireError
from fedlora.protos import decode, describe, encode
from fedlora.protos.envelope import SigningKey, VerifyingKey

from .payloads import adapter_tensors, read_adapter_tensors

Proto = TypeVar("Proto", bound=Message)

STYPE = "fedlora.safetensors"
ADAPTER, SIDE, SEALED, TENSORS = "adapter", "side", "fedlora", "tensors"
_SIGNATURE = "signature"


def pack(adapter: Adapter) -> ArrayRecord:
    """An adapter as Flower arrays: what `FedExLoRA.start` takes and what its result holds."""
    return arrays({ADAPTER: encode(adapter_tensors(adapter))})


def unpack(record: ArrayRecord) -> Adapter:
    """The adapter that `pack` packed.

    Raises:
        WireError: if the record holds something else.
    """
    content = payload(record, ADAPTER)
    return read_adapter_tensors(decode(content, describe(content)))


def arrays(payloads: Mapping[str, bytes]) -> ArrayRecord:
    """Payloads as flat arrays of bytes."""
    return record_of({name: array(content) for name, content in payloads.items()})


def array(content: bytes) -> Array:
    """A payload as a flat array of bytes."""
    return Array(dtype="uint8", shape=(len(content),), stype=STYPE, data=content)


def record_of(members: Mapping[str, Array]) -> ArrayRecord:
    """A record of these very arrays.

    Flower hashes an array once, however many messages it is in; but its own constructor of a record
    copies each.
    """
    record = ArrayRecord()
    for name, member in members.items():
        record[name] = member
    return record


def payload(record: ArrayRecord, name: str) -> bytes:
    """A payload's bytes.

    Raises:
        WireError: if there is none of this name.
    """
    array = record.get(name)
    if array is None or array.stype != STYPE:
        kind = "missing" if array is None else f"of type {array.stype!r}"
        raise WireError(f"array {name!r} is {kind}; expected {STYPE!r} bytes, as `pack` makes them")
    return array.data


def seal(kind: str, proto: Message, key: SigningKey | None) -> ConfigRecord:
    """A protobuf message, signed if there is a key."""
    body = proto.SerializeToString()
    signed = {_SIGNATURE: key.sign(kind, body)} if key else {}
    return ConfigRecord({kind: body, **signed})


def unseal(
    content: RecordDict, kind: str, empty: Proto, trusted: VerifyingKey | None = None
) -> Proto:
    """The message that `seal` sealed, read into `empty`.

    Args:
        content: of the Flower message.
        kind: of message that is expected.
        empty: a new message of that kind.
        trusted: whose signature it must carry; None to look at no signature.

    Raises:
        WireError: if there is no such message.
        IdentityError: if the signature is not that of `trusted`.
    """
    record = content.config_records.get(SEALED) or ConfigRecord()
    body = record.get(kind)
    if not isinstance(body, bytes):
        raise WireError(f"the message carries no {kind}")
    if trusted:
        signature = record.get(_SIGNATURE)
        trusted.check(kind, body, signature if isinstance(signature, bytes) else b"")
    try:
        empty.ParseFromString(body)
    except DecodeError:
        raise WireError(f"the message carries no {kind} that this version can read") from None
    return empty


def content_bytes(content: RecordDict) -> int:
    """Bytes of tensors in a message."""
    return sum(len(a.data) for record in content.array_records.values() for a in record.values())
