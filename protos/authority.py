"""Makes certificates: a federation's own authority, and what it signs for coordinator and clients.

A public authority would vouch for a domain name. Here the parties agree on one file, ca.crt, and
trust nothing else; so a node knows its coordinator behind any address that the certificate names.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedlora.adapters.errors import IdentityError

AUTHORITY_DAYS, SERVER_DAYS = 3650, 365
LOOPBACK = "127.0.0.1"  # where the coordinator's own processes meet, by the same certificate

_SKEW = timedelta(minutes=5)  # clocks differ; Flower allows as much
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,62})(\.[A-Za-z0-9][A-Za-z0-9-]{0,62})*"
)


def new_authority(days: int = AUTHORITY_DAYS) -> tuple[bytes, bytes]:
    """The private key and the certificate of a new authority, both PEM."""
    key = ec.generate_private_key(ec.SECP384R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _name(f"fedlora authority {identifier.digest.hex()[:8]}")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    return _key_pem(key), _pem(certificate)


def issue(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: int = SERVER_DAYS,
) -> tuple[bytes, bytes]:
    """The private key and the certificate of a server, both PEM.

    Args:
        authority: who signs.
        authority_key: likewise.
        hosts: DNS names and IP addresses by which nodes will call it; loopback is added.
        days: how long it is valid, but never longer than the authority.

    Raises:
        IdentityError: if something is neither a name nor an address.
    """
    names = [_general_name(host) for host in dict.fromkeys([*hosts, LOOPBACK])]
    alternative = x509.SubjectAlternativeName(names)
    name, usage = _name("fedlora coordinator"), ExtendedKeyUsageOID.SERVER_AUTH
    return _signed(authority, authority_key, name, days, usage, alternative)


def issue_client(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    name: str,
    days: int = SERVER_DAYS,
) -> tuple[bytes, bytes]:
    """The private key and the certificate, both PEM, of a party that calls the hub.

    Args:
        authority: who signs.
        authority_key: likewise.
        name: by which the hub will know it; not checked here.
        days: as in `issue`.
    """
    usage = ExtendedKeyUsageOID.CLIENT_AUTH
    return _signed(authority, authority_key, _name(name), days, usage)


def _signed(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    subject: x509.Name,
    days: int,
    usage: x509.ObjectIdentifier,
    *extensions: x509.ExtensionType,
) -> tuple[bytes, bytes]:
    """A new key, and its certificate for one use."""
    key = ec.generate_private_key(ec.SECP384R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
        authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    )
    left = (authority.not_valid_after_utc - _now()) // timedelta(days=1)
    builder = (
        _builder(subject, authority.subject, key, min(days, left))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(issuer, critical=False)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return _key_pem(key), _pem(builder.sign(authority_key, hashes.SHA384()))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _SKEW)
        .not_valid_after(_now() + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(**allowed: bool) -> x509.KeyUsage:
    """What a key may do; nothing else."""
    every = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment"]
    every += ["key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
    return x509.KeyUsage(**{one: allowed.get(one, False) for one in every})


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise IdentityError(
                f"{host!r} is neither a DNS name nor an IP address, as in fed.example.org"
            ) from None
        return x509.DNSName(host)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _now() -> datetime:
    return datetime.now(UTC)
