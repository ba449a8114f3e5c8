"""What a node signs with, and whose word it takes."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fedlora.protos.envelope import SigningKey, VerifyingKey
from fedlora.protos.keys import NodeKeys


@dataclass(frozen=True)
class NodeIdentity:
    """A node's own key, and the coordinator's public one; both None if nothing is signed."""

    signing: SigningKey | None = None
    coordinator: VerifyingKey | None = None


@lru_cache(maxsize=64)
def identity_of(keys: Path | None) -> NodeIdentity:
    """What the files in a folder say.

    Raises:
        IdentityError: if one is missing or can't be used.
    """
    if keys is None:
        return NodeIdentity()
    own = NodeKeys.open(keys)
    return NodeIdentity(own.signing, own.coordinator)
