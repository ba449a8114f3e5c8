"""The key folder of a party that takes the model from the hub.

    pki/NAME    ca.crt                   whom it trusts
                coordinator.pub          checks what the hub offers, if it is there
                client.key  client.crt   who it is, where the hub asks for certificates

A node's folder serves as well: it has the first two, and a token says who calls.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from .authority import issue_client
from .certificates import load_certificate, load_key, require_match
from .envelope import VerifyingKey
from .keyfiles import read, require_absent, require_private, write_private, write_public
from .keys import COORDINATOR, AuthorityKeys, require_name


@dataclass(frozen=True)
class ClientKeys:
    """What a caller of the hub shows and checks.

    Attributes:
        folder: where it is.
        coordinator: checks offers; None to trust TLS alone.
        own: private key and certificate, both PEM; None where a token says who calls.
        expires: until when each certificate is valid.
    """

    folder: Path
    coordinator: VerifyingKey | None
    own: tuple[bytes, bytes] | None
    expires: dict[str, datetime]

    @classmethod
    def open(cls, folder: Path) -> "ClientKeys":
        """Read and check the folder.

        Raises:
            IdentityError: naming the file that is missing, exposed, expired, or another's.
        """
        folder = folder.absolute()
        expires = {"ca.crt": load_certificate(folder / "ca.crt").not_valid_after_utc}
        public, key, certificate = (
            folder / name for name in (f"{COORDINATOR}.pub", "client.key", "client.crt")
        )
        own = None
        if certificate.exists():
            require_private([key])
            loaded = load_certificate(certificate)
            require_match(loaded, load_key(key), key)
            own, expires["client.crt"] = (read(key), read(certificate)), loaded.not_valid_after_utc
        trusted = VerifyingKey.load(public) if public.exists() else None
        return cls(folder, trusted, own, expires)

    @property
    def authority(self) -> Path:
        """What the hub's certificate is checked with."""
        return self.folder / "ca.crt"


def make_client(
    folder: Path, authority: AuthorityKeys, name: str, days: int, coordinator: Path | None = None
) -> ClientKeys:
    """The folder of a party called `name`.

    Args:
        folder: where to make it.
        authority: who signs.
        name: by which the hub knows the party.
        days: how long the certificate is valid.
        coordinator: a folder with coordinator.pub, to copy it.

    Raises:
        IdentityError: if it has a certificate already, or nobody can have this name.
    """
    require_name(name)
    require_absent(folder / "client.key", folder / "client.crt")
    key, certificate = issue_client(authority.certificate, authority.key, name, days)
    write_private(folder / "client.key", key)
    write_public(folder / "client.crt", certificate)
    write_public(folder / "ca.crt", read(authority.folder / "ca.crt"))
    if coordinator is not None:
        public = f"{COORDINATOR}.pub"
        write_public(folder / public, read(coordinator / public))
    return ClientKeys.open(folder)
