"""Reads certificates and their keys, and says in words what is wrong with one."""

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fedlora.adapters.errors import IdentityError

from .keyfiles import read


def load_certificate(path: Path) -> x509.Certificate:
    """Read a certificate that is valid today.

    Raises:
        IdentityError: if it is missing, garbled, expired, or not valid yet.
    """
    try:
        certificate = x509.load_pem_x509_certificate(read(path))
    except ValueError:
        raise IdentityError(f"{path} is no certificate in PEM format") from None
    begin, end, now = (
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        datetime.now(UTC),
    )
    if now > end:
        raise IdentityError(
            f"{path} expired on {end:%Y-%m-%d %H:%M} UTC; by this machine's clock it is "
            f"{now:%Y-%m-%d %H:%M}. Make a new one with `fedlora keys`, if the clock is right"
        )
    if now < begin:
        raise IdentityError(
            f"{path} is not valid before {begin:%Y-%m-%d %H:%M} UTC; by this machine's clock it is "
            f"{now:%Y-%m-%d %H:%M}: set the clock"
        )
    return certificate


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a certificate's private key.

    Raises:
        IdentityError: if it is missing, garbled, or of another type.
    """
    data = read(path)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (TypeError, ValueError):
        raise IdentityError(f"{path} is no private key in PEM format without passphrase") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"{path}: wrong type of key; expected one of an elliptic curve")
    return key


def require_match(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, at: Path) -> None:
    """See that a key is the certificate's.

    Raises:
        IdentityError: if not.
    """
    if certificate.public_key() != key.public_key():
        raise IdentityError(f"{at} is not the key of the certificate beside it")


def require_issued(certificate: x509.Certificate, authority: x509.Certificate, at: Path) -> None:
    """See that the authority signed a server's certificate, and that it may serve as one.

    Raises:
        IdentityError: if not.
    """
    policy = PolicyBuilder().store(Store([authority])).time(datetime.now(UTC))
    try:
        name = _names(certificate)[0]  # any will do: which one is called is the caller's business
        policy.build_server_verifier(name).verify(certificate, [])
    except (x509.ExtensionNotFound, VerificationError) as error:
        raise IdentityError(
            f"{at} is not a server's certificate signed by ca.crt beside it: {error}"
        ) from None


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The names and addresses that a server's certificate is for."""
    return tuple(str(name.value) for name in _names(certificate))


def _names(certificate: x509.Certificate) -> list[x509.DNSName | x509.IPAddress]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [name for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]
