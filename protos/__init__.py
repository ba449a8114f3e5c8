"""The wire: protobuf messages, and the codec that carries tensors beside them."""

from .codec import Limits, decode, describe, encode, verify
from .messages_pb2 import Head, Hello, Introduction, Manifest, TensorInfo, Update

__all__ = [
    "Head",
    "Hello",
    "Introduction",
    "Limits",
    "Manifest",
    "TensorInfo",
    "Update",
    "decode",
    "describe",
    "encode",
    "verify",
]
