"""Who holds which key: the folders of the authority, the coordinator and a node.

    pki/ca            ca.key  ca.crt                   signs the coordinator's certificate
    pki/coordinator   server.key  server.crt  ca.crt   TLS
                      signing.key  coordinator.pub     signs heads
                      nodes/NAME.pub                   who may take part
    pki/NAME          node.key  NAME.pub               signs updates
                      ca.crt  coordinator.pub          whom the node trusts

`open` checks a whole folder, so that a process that starts with one can rely on it.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedlora.adapters.errors import IdentityError

from .certificates import hosts_of, load_certificate, load_key, require_issued, require_match
from .envelope import SigningKey, VerifyingKey
from .keyfiles import require_private

KEYS = "FEDLORA_KEYS"  # tells the coordinator's app, which Flower starts, where its folder lies
NODES, COORDINATOR = "nodes", "coordinator"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class AuthorityKeys:
    """The folder that signs certificates; best kept off the network."""

    folder: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def open(cls, folder: Path) -> "AuthorityKeys":
        """Read and check the folder.

        Raises:
            IdentityError: naming the file that is missing, exposed, expired, or another's.
        """
        require_private([folder / "ca.key"])
        certificate, key = load_certificate(folder / "ca.crt"), load_key(folder / "ca.key")
        require_match(certificate, key, folder / "ca.key")
        return cls(folder, certificate, key)

    @property
    def expires(self) -> dict[str, datetime]:
        """Until when each certificate is valid."""
        return {"ca.crt": self.certificate.not_valid_after_utc}


@dataclass(frozen=True)
class CoordinatorKeys:
    """The coordinator's folder.

    Attributes:
        folder: where it is.
        signing: signs heads.
        hosts: the names and addresses that nodes may call it by.
        expires: until when each certificate is valid.
    """

    folder: Path
    signing: SigningKey
    hosts: tuple[str, ...]
    expires: dict[str, datetime]

    @classmethod
    def open(cls, folder: Path) -> "CoordinatorKeys":
        """Read and check the folder.

        Raises:
            IdentityError: naming the file that is missing, exposed, expired, or another's.
        """
        folder = folder.absolute()
        require_private([folder / "server.key", folder / "signing.key"])
        authority, server = (load_certificate(folder / name) for name in ("ca.crt", "server.crt"))
        require_match(server, load_key(folder / "server.key"), folder / "server.key")
        require_issued(server, authority, folder / "server.crt")
        signing = SigningKey.load(folder / "signing.key")
        _require_pair(signing, folder / f"{COORDINATOR}.pub", folder / "signing.key")
        expires = {
            "ca.crt": authority.not_valid_after_utc,
            "server.crt": server.not_valid_after_utc,
        }
        return cls(folder, signing, hosts_of(server), expires)

    @property
    def authority(self) -> Path:
        """What the certificate is checked with."""
        return self.folder / "ca.crt"

    @property
    def nodes_folder(self) -> Path:
        """Where the public keys of those lie who may take part."""
        return self.folder / NODES

    def nodes(self) -> dict[str, VerifyingKey]:
        """The public key of each node that may take part now.

        Raises:
            IdentityError: if a file is no key, or two names have the same one.
        """
        found: dict[str, VerifyingKey] = {}
        owners: dict[str, str] = {}
        for path in sorted(self.nodes_folder.glob("*.pub")):
            key = VerifyingKey.load(path)
            if (other := owners.setdefault(key.fingerprint, path.stem)) != path.stem:
                raise IdentityError(
                    f"{self.nodes_folder}: {other} and {path.stem} have the same key; each node "
                    "needs its own"
                )
            found[node_name(path)] = key
        return found


@dataclass(frozen=True)
class NodeKeys:
    """A node's folder.

    Attributes:
        folder: where it is.
        name: by which the coordinator knows the node.
        signing: signs updates.
        coordinator: checks heads.
        expires: until when each certificate is valid.
    """

    folder: Path
    name: str
    signing: SigningKey
    coordinator: VerifyingKey
    expires: dict[str, datetime]

    @classmethod
    def open(cls, folder: Path) -> "NodeKeys":
        """Read and check the folder.

        Raises:
            IdentityError: naming the file that is missing, exposed, expired, or another's.
        """
        folder = folder.absolute()
        require_private([folder / "node.key"])
        signing = SigningKey.load(folder / "node.key")
        own = [path for path in folder.glob("*.pub") if path.stem != COORDINATOR]
        if len(own) != 1:
            raise IdentityError(
                f"{folder} holds {len(own)} public keys beside coordinator.pub; expected one, "
                "NAME.pub of this node"
            )
        _require_pair(signing, own[0], folder / "node.key")
        authority = load_certificate(folder / "ca.crt")
        coordinator = VerifyingKey.load(folder / f"{COORDINATOR}.pub")
        expires = {"ca.crt": authority.not_valid_after_utc}
        return cls(folder, node_name(own[0]), signing, coordinator, expires)

    @property
    def authority(self) -> Path:
        """What the coordinator's certificate is checked with."""
        return self.folder / "ca.crt"

    @property
    def private(self) -> Path:
        """The file of the signing key, by which Flower knows the node too."""
        return self.folder / "node.key"


def require_name(name: str) -> None:
    """See that a node may be called so.

    Raises:
        IdentityError: if not.
    """
    if name == COORDINATOR or not NAME.fullmatch(name):
        raise IdentityError(
            f"no node can be called {name!r}: expected up to 64 letters, digits, '.', '_' and "
            f"'-', the first a letter or digit, and not {COORDINATOR}"
        )


def node_name(path: Path) -> str:
    """The name of the node whose public key file this is: NAME.pub.

    Raises:
        IdentityError: if no node can be called so.
    """
    if path.suffix != ".pub":
        raise IdentityError(f"{path}: expected a node's public key, NAME.pub")
    require_name(path.stem)
    return path.stem


def _require_pair(signing: SigningKey, public: Path, private: Path) -> None:
    if VerifyingKey.load(public).fingerprint != signing.fingerprint:
        raise IdentityError(f"{public} is not the public half of {private}")
