"""Fills the folders of `keys.py`: what `fedlora keys` does.

A private key is made where it is used and never leaves; only ca.crt and .pub files travel.
"""

from collections.abc import Sequence
from pathlib import Path

from fedlora.adapters.errors import IdentityError

from .authority import issue, new_authority
from .envelope import SigningKey, VerifyingKey
from .keyfiles import read, require_absent, write_private, write_public
from .keys import (
    COORDINATOR,
    NODES,
    AuthorityKeys,
    CoordinatorKeys,
    NodeKeys,
    node_name,
    require_name,
)

HANDED_OUT = ("ca.crt", f"{COORDINATOR}.pub")  # what a node needs of the coordinator


def make_authority(folder: Path, days: int) -> AuthorityKeys:
    """A new authority, valid for so many days.

    Raises:
        IdentityError: if there is one already.
    """
    require_absent(folder / "ca.key", folder / "ca.crt")
    key, certificate = new_authority(days)
    write_private(folder / "ca.key", key)
    write_public(folder / "ca.crt", certificate)
    return AuthorityKeys.open(folder)


def make_coordinator(
    folder: Path, authority: AuthorityKeys, hosts: Sequence[str], days: int
) -> CoordinatorKeys:
    """A coordinator's folder; a signing key that is there already stays, as nodes know it.

    Args:
        folder: where to make it.
        authority: who signs the certificate.
        hosts: names and addresses by which nodes will call the coordinator.
        days: how long the certificate is valid.

    Raises:
        IdentityError: if it has a certificate already, or a host is neither name nor address.
    """
    require_absent(folder / "server.key", folder / "server.crt")
    key, certificate = issue(authority.certificate, authority.key, hosts, days)
    write_private(folder / "server.key", key)
    write_public(folder / "server.crt", certificate)
    write_public(folder / "ca.crt", read(authority.folder / "ca.crt"))
    if not (folder / "signing.key").exists():
        signing = SigningKey.generate()
        write_private(folder / "signing.key", signing.openssh)
        write_public(folder / f"{COORDINATOR}.pub", signing.verifying.line(COORDINATOR))
    (folder / NODES).mkdir(exist_ok=True)
    return CoordinatorKeys.open(folder)


def make_node(folder: Path, name: str) -> VerifyingKey:
    """A node's own two files; returns its public key.

    Raises:
        IdentityError: if there are such files already, or no node can have this name.
    """
    require_name(name)
    public = folder / f"{name}.pub"
    require_absent(folder / "node.key", public)
    signing = SigningKey.generate()
    write_private(folder / "node.key", signing.openssh)
    write_public(public, signing.verifying.line(name))
    return signing.verifying


def introduce(folder: Path, coordinator: Path) -> NodeKeys:
    """Give a node's folder what it needs of a coordinator's folder.

    Raises:
        IdentityError: if a file is missing there, or another one is here.
    """
    for name in HANDED_OUT:
        write_public(folder / name, read(coordinator / name))
    return NodeKeys.open(folder)


def register(public: Path, coordinator: Path) -> tuple[str, VerifyingKey]:
    """Let a node take part; returns its name and key.

    Args:
        public: the node's NAME.pub.
        coordinator: the coordinator's folder.

    Raises:
        IdentityError: if it is no key, or its name or key is another node's.
    """
    name, key = node_name(public), VerifyingKey.load(public)
    keys = CoordinatorKeys.open(coordinator)
    nodes = keys.nodes()
    for other, known in nodes.items():
        if (other == name) != (known == key):
            same = "name" if other == name else "key"
            raise IdentityError(
                f"the node {other} in {keys.nodes_folder} has the same {same} and another "
                f"{'key' if same == 'name' else 'name'}: each node needs its own; remove "
                f"{other}.pub there to replace it"
            )
    if name not in nodes:
        write_public(keys.nodes_folder / public.name, key.line(name))
    return name, key
