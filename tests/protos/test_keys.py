"""The folders of keys: what is made is accepted, and everything wrong with one is named."""

import os
import shutil
import ssl
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedlora.adapters import IdentityError
from fedlora.protos import authority, certificates
from fedlora.protos.keymaking import (
    introduce,
    make_authority,
    make_coordinator,
    make_node,
    register,
)
from fedlora.protos.keys import AuthorityKeys, CoordinatorKeys, NodeKeys

OPEN: dict[str, Callable[[Path], object]] = {
    "ca": AuthorityKeys.open,
    "coordinator": CoordinatorKeys.open,
    "clinic": NodeKeys.open,
}


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """A federation's keys: authority, coordinator, and the registered node clinic."""
    ca = make_authority(tmp_path / "ca", 3650)
    make_coordinator(tmp_path / "coordinator", ca, ["fed.example.org", "::1"], 365)
    make_node(tmp_path / "clinic", "clinic")
    introduce(tmp_path / "clinic", tmp_path / "coordinator")
    register(tmp_path / "clinic" / "clinic.pub", tmp_path / "coordinator")
    return tmp_path


def test_what_is_made_opens_and_fits(pki: Path) -> None:
    coordinator, clinic = CoordinatorKeys.open(pki / "coordinator"), NodeKeys.open(pki / "clinic")
    assert coordinator.hosts == ("fed.example.org", "::1", "127.0.0.1")
    assert clinic.name == "clinic"
    assert coordinator.nodes() == {"clinic": clinic.signing.verifying}
    assert clinic.coordinator == coordinator.signing.verifying
    clinic.coordinator.check("head", b"head", coordinator.signing.sign("head", b"head"))
    assert coordinator.expires.keys() == {"ca.crt", "server.crt"}


def test_S15_private_files_are_their_owners_alone(pki: Path) -> None:
    for path in (path for path in pki.rglob("*") if path.is_file()):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == 0o600 if path.suffix == ".key" else mode & 0o044, path
    for path in sorted(pki.rglob("*.key")):
        path.chmod(0o640)
        with pytest.raises(IdentityError, match=rf"{path.name}: chmod 600"):
            OPEN[path.parent.name](path.parent)
        path.chmod(0o600)


@pytest.mark.parametrize("name", OPEN)
def test_every_file_is_needed(pki: Path, name: str) -> None:
    folder = pki / name
    for path in [path for path in folder.iterdir() if path.is_file()]:
        kept = path.rename(pki / "kept")
        with pytest.raises(IdentityError, match=r"cannot read .*: No such|holds 0 public"):
            OPEN[name](folder)
        kept.rename(path)
    OPEN[name](folder)


def test_another_ones_files_are_refused(pki: Path, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "other" / "ca", 10)
    make_coordinator(tmp_path / "other" / "coordinator", other, ["b.example.org"], 10)
    make_node(tmp_path / "other" / "clinic", "clinic")
    wrong = {
        "coordinator/server.key": "not the key of the certificate",
        "coordinator/ca.crt": r"server\.crt is not a server's certificate signed by ca\.crt",
        "coordinator/coordinator.pub": "is not the public half of .*signing.key",
        "clinic/clinic.pub": "is not the public half of .*node.key",
        "ca/ca.key": "not the key of the certificate",
    }
    for number, (name, reason) in enumerate(wrong.items()):
        place = Path(name).parent
        folder = shutil.copytree(pki / place, tmp_path / str(number) / place)
        shutil.copy(tmp_path / "other" / name, folder)
        with pytest.raises(IdentityError, match=reason):
            OPEN[folder.name](folder)


def test_an_authority_is_no_server(pki: Path) -> None:
    folder = pki / "coordinator"
    for name in ("key", "crt"):
        shutil.copy(pki / "ca" / f"ca.{name}", folder / f"server.{name}")
    with pytest.raises(IdentityError, match="not a server's certificate"):
        CoordinatorKeys.open(folder)


def test_S13_expired_and_not_yet_valid(pki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pki / "coordinator"
    real = authority._now()
    said = {-400: r"server\.crt expired on .*by this machine's clock it is", 2: "set the clock"}
    for days, reason in said.items():
        for name in ("server.key", "server.crt"):
            (folder / name).unlink()
        monkeypatch.setattr(authority, "_now", lambda days=days: real + timedelta(days=days))
        with pytest.raises(IdentityError, match=reason):
            make_coordinator(folder, AuthorityKeys.open(pki / "ca"), ["a"], 300)


def test_garbled_files_are_named(pki: Path) -> None:
    for name, reason in {
        "coordinator/server.crt": "no certificate in PEM",
        "coordinator/server.key": "no private key in PEM",
        "coordinator/signing.key": "is no private key",
        "coordinator/coordinator.pub": "is no public key",
    }.items():
        path = pki / name
        kept = path.read_bytes()
        path.write_bytes(b"-----BEGIN NOTHING-----\n")
        with pytest.raises(IdentityError, match=reason) as caught:
            CoordinatorKeys.open(path.parent)
        assert path.name in str(caught.value)
        path.write_bytes(kept)


def test_no_key_is_written_over(pki: Path) -> None:
    before = {path: path.read_bytes() for path in pki.rglob("*") if path.is_file()}
    ca = AuthorityKeys.open(pki / "ca")
    for again in (
        lambda: make_authority(pki / "ca", 10),
        lambda: make_coordinator(pki / "coordinator", ca, ["a"], 10),
        lambda: make_node(pki / "clinic", "clinic"),
    ):
        with pytest.raises(IdentityError, match="there already, and keys are not written over"):
            again()
    assert before == {path: path.read_bytes() for path in pki.rglob("*") if path.is_file()}


def test_a_certificate_is_renewed_and_the_signing_key_stays(pki: Path) -> None:
    folder = pki / "coordinator"
    before = CoordinatorKeys.open(folder)
    for name in ("server.key", "server.crt"):
        (folder / name).unlink()
    after = make_coordinator(folder, AuthorityKeys.open(pki / "ca"), ["other.example.org"], 700)
    assert after.signing.fingerprint == before.signing.fingerprint
    assert after.nodes() == before.nodes()
    assert after.expires["server.crt"] > before.expires["server.crt"]


def test_a_server_does_not_outlive_its_authority(tmp_path: Path) -> None:
    ca = make_authority(tmp_path / "ca", 20)
    keys = make_coordinator(tmp_path / "coordinator", ca, ["a"], 365)
    assert keys.expires["server.crt"] <= keys.expires["ca.crt"]


@pytest.mark.parametrize("host", ["", "a b", "-a", "http://a", "a:8000", "*.example.org", "ä.org"])
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    ca = make_authority(tmp_path / "ca", 20)
    with pytest.raises(IdentityError, match="neither a DNS name nor an IP address"):
        make_coordinator(tmp_path / "coordinator", ca, [host], 365)


def test_a_name_or_key_belongs_to_one_node(pki: Path) -> None:
    folder = pki / "coordinator"
    register(pki / "clinic" / "clinic.pub", folder)  # again is no error
    make_node(pki / "second", "clinic")
    with pytest.raises(IdentityError, match=r"clinic in .* has the same name and another key"):
        register(pki / "second" / "clinic.pub", folder)
    copied = shutil.copy(pki / "clinic" / "clinic.pub", pki / "alias.pub")
    with pytest.raises(IdentityError, match=r"clinic in .* has the same key and another name"):
        register(Path(copied), folder)
    shutil.copy(copied, folder / "nodes")
    with pytest.raises(IdentityError, match="alias and clinic have the same key"):
        CoordinatorKeys.open(folder).nodes()


@pytest.mark.parametrize("name", ["coordinator", "../clinic", ".clinic", "a b", "x" * 65, ""])
def test_names_that_no_node_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(IdentityError, match="no node can be called"):
        make_node(tmp_path / "node", name)


def test_only_a_public_key_is_registered(pki: Path) -> None:
    with pytest.raises(IdentityError, match=r"node\.key: expected a node's public key"):
        register(pki / "clinic" / "node.key", pki / "coordinator")
    (pki / "other.pub").write_bytes((pki / "clinic" / "node.key").read_bytes())
    with pytest.raises(IdentityError, match=r"other\.pub is no public key"):
        register(pki / "other.pub", pki / "coordinator")


def test_the_extensions_are_those_that_strict_clients_want(pki: Path) -> None:
    server = certificates.load_certificate(pki / "coordinator" / "server.crt")
    ca = certificates.load_certificate(pki / "ca" / "ca.crt")
    assert server.extensions.get_extension_for_class(x509.BasicConstraints).critical
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usages = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.SERVER_AUTH]
    issuer = server.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    subject = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert issuer.key_identifier == subject.digest
    assert ca.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert not server.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    strict = ssl.create_default_context(cafile=str(pki / "ca" / "ca.crt"))
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    _handshake(strict, pki / "coordinator")


def _handshake(client: ssl.SSLContext, folder: Path) -> None:
    """TLS in memory, without a socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(down, up, server_hostname="fed.example.org")
    there = context.wrap_bio(up, down, server_side=True)
    for side in (here, there) * 3:
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert here.version() == there.version() == "TLSv1.3"


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_ssh_keygen_reads_the_node_key(pki: Path) -> None:
    path = pki / "clinic" / "node.key"
    done = subprocess.run(["ssh-keygen", "-y", "-f", path], capture_output=True, check=True)
    assert done.stdout.split()[:2] == (pki / "clinic" / "clinic.pub").read_bytes().split()[:2]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match=r"cannot write .*file"):
        make_node(tmp_path / "file", "clinic")
    assert os.listdir(tmp_path) == ["file"]
