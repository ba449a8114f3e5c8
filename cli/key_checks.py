"""What `fedlora doctor` looks at in a folder of keys."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from fedlora.adapters.errors import IdentityError
from fedlora.protos.clientkeys import ClientKeys
from fedlora.protos.keys import AuthorityKeys, CoordinatorKeys, NodeKeys

from .machine import Check

SOON = 30  # days before its end in which a certificate should be renewed

Keys = AuthorityKeys | CoordinatorKeys | NodeKeys | ClientKeys


def examine_keys(folder: Path) -> Iterator[Check]:
    """Whether the folder is complete and private, and how long its certificates are valid."""
    try:
        keys = _open(folder)
        yield Check("keys", _describe(keys))
    except IdentityError as error:
        yield Check("keys", str(folder), str(error), fatal=True)
    else:
        yield _expiry(keys)


def _open(folder: Path) -> Keys:
    """The folder, as what it holds says that it is."""
    if (folder / "ca.key").exists():
        return AuthorityKeys.open(folder)
    if (folder / "signing.key").exists():
        return CoordinatorKeys.open(folder)
    if (folder / "client.key").exists():
        return ClientKeys.open(folder)
    return NodeKeys.open(folder)


def _describe(keys: Keys) -> str:
    if isinstance(keys, AuthorityKeys):
        return f"authority {keys.certificate.subject.rfc4514_string()}"
    if isinstance(keys, NodeKeys):
        trusted = keys.coordinator.fingerprint
        return f"node {keys.name} {keys.signing.fingerprint}, trusts coordinator {trusted}"
    if isinstance(keys, ClientKeys):
        trusted = keys.coordinator.fingerprint if keys.coordinator else "by TLS alone"
        return f"client of a hub, trusts coordinator {trusted}"
    nodes = ", ".join(f"{name} {key.fingerprint}" for name, key in keys.nodes().items())
    names = ", ".join(keys.hosts)
    return f"coordinator {keys.signing.fingerprint} at {names}; nodes: {nodes or 'none yet'}"


def _expiry(keys: Keys) -> Check:
    now = datetime.now(UTC)
    found = ", ".join(f"{name} until {end:%Y-%m-%d}" for name, end in keys.expires.items())
    ending = [name for name, end in keys.expires.items() if (end - now).days < SOON]
    if ending:
        problem = f"{' and '.join(ending)} will expire soon: renew with `fedlora keys`"
        return Check("expiry", found, problem)
    return Check("expiry", found)
