"""Signatures on what travels: who wrote a message, and that nobody changed it on its way.

TLS ends at a proxy and Flower's node authentication covers a timestamp only, so the body is signed
by whoever made it, with the very key that Flower knows the node by: ECDSA on P-384, in OpenSSH's
format. What is signed is framed, so that a signature holds for one kind of message alone.
"""

import hashlib
import struct
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
    ssh_key_fingerprint,
)

from fedlora.adapters.errors import IdentityError

from .keyfiles import read

KINDS = frozenset(
    {"answer", "evaluation", "head", "hello", "introduction", "lesson", "offer", "update"}
)

_PREFIX = b"fedlora signature v1"
_ALGORITHM = ec.ECDSA(Prehashed(hashes.SHA384()))
_WANTED = "an ECDSA key on P-384 in OpenSSH's format, as `fedlora keys` makes"

Key = TypeVar("Key")


@dataclass(frozen=True)
class VerifyingKey:
    """The public half: checks what its owner signed.

    Attributes:
        public: the key itself.
    """

    public: ec.EllipticCurvePublicKey

    @classmethod
    def load(cls, path: Path) -> "VerifyingKey":
        """Read a public key file, `ecdsa-sha2-nistp384 AAAA... name`.

        Raises:
            IdentityError: if it is missing, garbled, or of another type.
        """
        return cls.from_bytes(read(path), str(path))

    @classmethod
    def from_bytes(cls, line: bytes, source: str = "public key") -> "VerifyingKey":
        """The key of a public key file's content.

        Args:
            line: the one line of the file.
            source: what to call it in an error.

        Raises:
            IdentityError: if it is garbled, or of another type.
        """
        key = _parsed(lambda: load_ssh_public_key(line), source, "public key")
        if not isinstance(key, ec.EllipticCurvePublicKey) or not _p384(key.curve):
            raise IdentityError(f"{source}: wrong type of key; expected {_WANTED}")
        return cls(key)

    @property
    def fingerprint(self) -> str:
        """`SHA256:...`, as ssh-keygen prints it."""
        digest = ssh_key_fingerprint(self.public, hashes.SHA256())
        return "SHA256:" + b64encode(digest).decode().rstrip("=")

    @property
    def pem(self) -> bytes:
        """The key as Flower sends it along."""
        return self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def line(self, name: str) -> bytes:
        """The content of a public key file with the owner's name."""
        key = self.public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return key + f" {name}\n".encode()

    def check(self, kind: str, body: bytes, signature: bytes) -> None:
        """See that this key's owner signed this body as this kind of message.

        Raises:
            IdentityError: if not.
            ValueError: if there is no such kind.
        """
        try:
            self.public.verify(signature, _digest(kind, body), _ALGORITHM)
        except InvalidSignature:
            reason = "is not signed" if not signature else "does not carry a signature"
            raise IdentityError(
                f"this {kind} {reason} of the key {self.fingerprint}: another party made it, or "
                "it was altered on its way"
            ) from None


@dataclass(frozen=True)
class SigningKey:
    """The private half, which stays with its owner."""

    _private: ec.EllipticCurvePrivateKey

    @classmethod
    def generate(cls) -> "SigningKey":
        """A new key."""
        return cls(ec.generate_private_key(ec.SECP384R1()))

    @classmethod
    def load(cls, path: Path) -> "SigningKey":
        """Read a private key file, without a passphrase.

        Raises:
            IdentityError: if it is missing, garbled, of another type, or has a passphrase.
        """
        data = read(path)
        key = _parsed(lambda: load_ssh_private_key(data, password=None), str(path), "private key")
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not _p384(key.curve):
            raise IdentityError(f"{path}: wrong type of key; expected {_WANTED}")
        return cls(key)

    @property
    def verifying(self) -> VerifyingKey:
        """The public half."""
        return VerifyingKey(self._private.public_key())

    @property
    def openssh(self) -> bytes:
        """The content of a private key file, without a passphrase."""
        return self._private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())

    @property
    def fingerprint(self) -> str:
        """That of the public half."""
        return self.verifying.fingerprint

    def sign(self, kind: str, body: bytes) -> bytes:
        """Sign a body as one kind of message; about 100 bytes, other ones each time.

        Raises:
            ValueError: if there is no such kind.
        """
        return self._private.sign(_digest(kind, body), _ALGORITHM)

    def __repr__(self) -> str:
        """Which key, and never the key."""
        return f"SigningKey({self.fingerprint})"


def _digest(kind: str, body: bytes) -> bytes:
    """What is signed: SHA-384 of prefix, kind and body, each behind its length."""
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of signed message: {sorted(KINDS)}")
    digest = hashlib.sha384()
    for part in (_PREFIX, kind.encode(), body):
        digest.update(struct.pack(">Q", len(part)))
        digest.update(part)
    return digest.digest()


def _parsed(load: Callable[[], Key], source: str, what: str) -> Key:
    """The key, or an error that never quotes the file."""
    try:
        return load()
    except TypeError:  # as cryptography says that a passphrase is missing
        raise IdentityError(
            f"{source} is protected by a passphrase, which nobody could type when a node starts: "
            "remove it with `ssh-keygen -p`"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise IdentityError(f"{source} is no {what}; expected {_WANTED}") from None


def _p384(curve: ec.EllipticCurve) -> bool:
    return isinstance(curve, ec.SECP384R1)
