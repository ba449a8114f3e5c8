"""What coordinator and nodes say to each other, as Flower messages: the one place that knows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from flwr.app import Array, ConfigRecord, Message, RecordDict

from fedlora.adapters import Adapter, Residual, WireError
from fedlora.protos import (
    Evaluation,
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
from fedlora.protos.envelope import SigningKey, VerifyingKey

from .packing import ADAPTER, SEALED, SIDE, TENSORS, arrays, payload, record_of, seal, unseal
from .payloads import adapter_tensors, read_adapter_tensors, read_residual_tensors
from .records import head_hash


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
        content = self.payloads.get(ADAPTER, b"")
        return read_adapter_tensors(decode(content, self.proto.adapter, self.limits))

    @property
    def history(self) -> list[str]:
        """Digest of every residual folded into the base so far, oldest first."""
        return [digest.hex() for digest in self.proto.history]

    @property
    def folded_payloads(self) -> dict[str, bytes]:
        """The residuals and the snapshot that came along, by digest, each checked.

        Raises:
            WireError: if one was altered, or is not announced.
        """
        announced = [*self.proto.residuals, self.proto.snapshot.manifest]
        manifests = {manifest.digest.hex(): manifest for manifest in announced}
        others = ADAPTER, SIDE
        folded = {name: content for name, content in self.payloads.items() if name not in others}
        for digest, content in folded.items():
            if digest not in manifests:
                raise WireError(f"payload {digest[:12]!r} is not announced in the head")
            verify(content, manifests[digest], self.limits)
        return folded

    @property
    def side(self) -> dict[str, Residual]:
        """The side path, by module; empty if none is announced.

        Raises:
            WireError: if it was altered, or did not come along.
        """
        if not self.proto.HasField("side"):
            return {}
        content = self.payloads.get(SIDE, b"")
        return read_residual_tensors(decode(content, self.proto.side.manifest, self.limits))

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
    head: Head, payloads: Mapping[str, Array], config: ConfigRecord, key: SigningKey | None = None
) -> RecordDict:
    """A head with its payloads by name, and `config` beside for the node's own use."""
    sealed = seal("head", head, key)
    return RecordDict({SEALED: sealed, TENSORS: record_of(payloads), "config": config})


def open_head(
    message: Message, limits: Limits | None = None, trusted: VerifyingKey | None = None
) -> ReceivedHead:
    """The head in a message from the coordinator.

    Args:
        message: as it came.
        limits: what this node accepts.
        trusted: the coordinator's key; None to look at no signature.

    Raises:
        WireError: if the message holds no head.
        IdentityError: if the head is not signed by the coordinator.
    """
    proto = unseal(message.content, "head", Head(), trusted)
    record = message.content.array_records[TENSORS]
    payloads = {name: payload(record, name) for name in record}
    return ReceivedHead(proto, payloads, limits or Limits())


def reply_update(
    message: Message,
    adapter: Adapter,
    *,
    node: str,
    examples: int,
    metrics: Mapping[str, float],
    folded: str = "",
    key: SigningKey | None = None,
) -> Message:
    """A node's reply to a head: its trained adapter, signed off with whose and from which head.

    Args:
        message: with the head.
        adapter: that was trained from it.
        node: name of the node.
        examples: that it was trained on; the update's weight.
        metrics: counted by the node.
        folded: what the node's frozen weights are; see `TunedModel.folded`.
        key: of the node.
    """
    head = unseal(message.content, "head", Head())
    content = encode(adapter_tensors(adapter))
    update = Update(
        run=head.run,
        round=head.round + 1,
        base=head.base,
        head=head.head,
        node=node,
        examples=examples,
        adapter=describe(content),
        metrics=metrics,
        folded=folded,
    )
    sealed, tensors = seal("update", update, key), arrays({ADAPTER: content})
    return Message(RecordDict({SEALED: sealed, TENSORS: tensors}), reply_to=message)


def open_update(message: Message, trusted: VerifyingKey | None = None) -> tuple[Update, bytes]:
    """A node's update and its payload, both unchecked but for the signature.

    Raises:
        WireError: if the message holds none.
        IdentityError: if it is not signed by `trusted`.
    """
    update = unseal(message.content, "update", Update(), trusted)
    record = message.content.array_records.get(TENSORS)
    if record is None:
        raise WireError("the reply carries no tensors")
    return update, payload(record, ADAPTER)


def reply_evaluation(
    message: Message,
    *,
    node: str,
    metrics: Mapping[str, float],
    folded: str = "",
    key: SigningKey | None = None,
) -> Message:
    """A node's reply with metrics of a head alone."""
    head = unseal(message.content, "head", Head())
    made = Evaluation(
        run=head.run, round=head.round, head=head.head, node=node, metrics=metrics, folded=folded
    )
    return Message(RecordDict({SEALED: seal("evaluation", made, key)}), reply_to=message)


def open_evaluation(message: Message, trusted: VerifyingKey | None = None) -> Evaluation:
    """A node's evaluation of a head.

    Raises:
        WireError: if the message holds none.
        IdentityError: if it is not signed by `trusted`.
    """
    return unseal(message.content, "evaluation", Evaluation(), trusted)


def hello_content(hello: Hello, key: SigningKey | None = None) -> RecordDict:
    """The coordinator's first words to a node."""
    return RecordDict({SEALED: seal("hello", hello, key)})


def open_hello(message: Message, trusted: VerifyingKey | None = None) -> Hello:
    """The coordinator's first words.

    Raises:
        WireError: if the message holds none.
        IdentityError: if they are not signed by `trusted`.
    """
    return unseal(message.content, "hello", Hello(), trusted)


def reply_introduction(
    message: Message, introduction: Introduction, key: SigningKey | None = None
) -> Message:
    """A node's reply to the coordinator's first words."""
    return Message(RecordDict({SEALED: seal("introduction", introduction, key)}), reply_to=message)


def open_introduction(
    message: Message, key_of: Callable[[str], VerifyingKey | None] = lambda node: None
) -> Introduction:
    """A node's introduction.

    Args:
        message: as it came.
        key_of: the key of a node of this name; None to look at no signature.

    Raises:
        WireError: if the message holds none.
        IdentityError: if it is not signed by the node that it names.
    """
    claimed = unseal(message.content, "introduction", Introduction())
    return unseal(message.content, "introduction", Introduction(), key_of(claimed.node))
