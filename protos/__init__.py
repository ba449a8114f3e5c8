"""The wire: protobuf messages, the codec that carries tensors beside them, and signatures.

Names are loaded when they are asked for, so that a key costs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .codec import Limits, decode, describe, encode, verify
    from .envelope import SigningKey, VerifyingKey
    from .messages_pb2 import (
        Answer,
        Evaluation,
        Head,
        Hello,
        Introduction,
        Lesson,
        Manifest,
        Side,
        Snapshot,
        TensorInfo,
        Update,
    )

__all__ = [
    "Answer",
    "Evaluation",
    "Head",
    "Hello",
    "Introduction",
    "Lesson",
    "Limits",
    "Manifest",
    "Side",
    "SigningKey",
    "Snapshot",
    "TensorInfo",
    "Update",
    "VerifyingKey",
    "decode",
    "describe",
    "encode",
    "verify",
]

_MODULES = ("messages_pb2", "envelope", "codec")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = vars(import_module(f".{module}", __name__)).get(name)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
