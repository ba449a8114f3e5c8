"""A cross-model round's messages: a lesson goes out, an answer comes back, both on public text.

An answer has no field for anything private: no metrics, no count, no adapter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedlora.adapters import WireError
from fedlora.models.knowledge import Knowledge
from fedlora.protos import Answer, Lesson, describe
from fedlora.protos.envelope import SigningKey, VerifyingKey

from .knowledge import Bounds, pack_knowledge, read_knowledge
from .packing import SEALED, TENSORS, arrays, payload, seal, unseal

KNOWLEDGE = "knowledge"
EXAMPLES = 100_000  # that a node accepts in one lesson


@dataclass(frozen=True)
class ReceivedLesson:
    """A lesson as a node received it.

    Attributes:
        proto: the message.
        payloads: safetensors bytes by digest; checked when they are read.
    """

    proto: Lesson
    payloads: Mapping[str, bytes]

    def sources(self, top_k: int, max_length: int) -> list[Knowledge]:
        """What others know of the examples to study.

        Raises:
            WireError: if it is malformed, or did not come along.
        """
        bounds = Bounds(len(self.proto.study), top_k, max_length)
        return [
            read_knowledge(self.payloads.get(one.digest.hex(), b""), one, bounds)
            for one in self.proto.sources
        ]


def lesson_content(
    lesson: Lesson,
    sources: Sequence[Knowledge],
    config: ConfigRecord,
    key: SigningKey | None = None,
) -> RecordDict:
    """A lesson with the knowledge that goes with it.

    Args:
        lesson: whose `sources` are set here.
        sources: what is known of the examples to study.
        config: for the node's own use.
        key: of the coordinator.
    """
    packed = [pack_knowledge(source) for source in sources]
    manifests = [describe(content) for content in packed]
    del lesson.sources[:]
    lesson.sources.extend(manifests)
    names = [manifest.digest.hex() for manifest in manifests]
    tensors = arrays(dict(zip(names, packed, strict=True)))
    return RecordDict({SEALED: seal("lesson", lesson, key), TENSORS: tensors, "config": config})


def is_lesson(message: Message) -> bool:
    """Whether a message from the coordinator is of a cross-model run."""
    return "lesson" in (message.content.config_records.get(SEALED) or ())


def open_lesson(message: Message, trusted: VerifyingKey | None = None) -> ReceivedLesson:
    """The lesson in a message from the coordinator.

    Args:
        message: as it came.
        trusted: the coordinator's key; None to look at no signature.

    Raises:
        WireError: if the message holds none.
        IdentityError: if it is not signed by the coordinator.
    """
    proto = unseal(message.content, "lesson", Lesson(), trusted)
    if max(len(proto.study), len(proto.next)) > EXAMPLES:
        raise WireError(f"a lesson of more than {EXAMPLES} public examples")
    record = message.content.array_records.get(TENSORS, ArrayRecord())
    return ReceivedLesson(proto, {name: payload(record, name) for name in record})


def reply_answer(
    message: Message, knowledge: Knowledge, node: str, key: SigningKey | None = None
) -> Message:
    """A node's reply to a lesson: what it knows of the public examples to predict.

    Args:
        message: with the lesson.
        knowledge: of its examples `next`.
        node: name of the node.
        key: of the node.
    """
    lesson = unseal(message.content, "lesson", Lesson())
    content = pack_knowledge(knowledge)
    answer = Answer(
        run=lesson.run,
        round=lesson.round,
        head=lesson.head,
        node=node,
        knowledge=describe(content),
    )
    sealed, tensors = seal("answer", answer, key), arrays({KNOWLEDGE: content})
    return Message(RecordDict({SEALED: sealed, TENSORS: tensors}), reply_to=message)


def open_answer(message: Message, trusted: VerifyingKey | None = None) -> tuple[Answer, bytes]:
    """A node's answer and its payload, both unchecked but for the signature.

    Raises:
        WireError: if the message holds none.
        IdentityError: if it is not signed by `trusted`.
    """
    answer = unseal(message.content, "answer", Answer(), trusted)
    record = message.content.array_records.get(TENSORS)
    if record is None:
        raise WireError("the reply carries no tensors")
    return answer, payload(record, KNOWLEDGE)
