"""Signatures hold for the very bytes, kind and key, and for nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlora.adapters import IdentityError
from fedlora.protos import SigningKey, VerifyingKey
from fedlora.protos.envelope import KINDS

KEY = SigningKey.generate()
BODY = b"factors of round 3"


def keygen(folder: Path, *arguments: str, passphrase: str = "") -> Path:
    path = folder / "node.key"
    command = ["ssh-keygen", "-q", "-N", passphrase, "-C", "clinic", "-f", str(path)]
    subprocess.run([*command, *(arguments or ("-t", "ecdsa", "-b", "384"))], check=True)
    return path


def test_the_files_of_ssh_keygen_sign_and_check(tmp_path: Path) -> None:
    path = keygen(tmp_path)
    signing, verifying = SigningKey.load(path), VerifyingKey.load(path.with_suffix(".key.pub"))
    verifying.check("update", BODY, signing.sign("update", BODY))
    assert signing.verifying.fingerprint == verifying.fingerprint == signing.fingerprint
    listed = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(path)], check=True, capture_output=True, text=True
    )
    assert listed.stdout.split()[1] == verifying.fingerprint


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_S8_a_signature_holds_for_one_key(kind: str) -> None:
    other = SigningKey.generate()
    with pytest.raises(IdentityError, match=f"this {kind} does not carry a signature of the key"):
        KEY.verifying.check(kind, BODY, other.sign(kind, BODY))


def test_S8_a_signature_holds_for_one_kind() -> None:
    for made in KINDS:
        signature = KEY.sign(made, BODY)
        for read in KINDS - {made}:
            with pytest.raises(IdentityError, match=read):
                KEY.verifying.check(read, BODY, signature)


def test_S9_every_altered_byte_of_the_body_is_seen() -> None:
    signature = KEY.sign("update", BODY)
    for place in range(len(BODY)):
        altered = bytearray(BODY)
        altered[place] ^= 1
        with pytest.raises(IdentityError):
            KEY.verifying.check("update", bytes(altered), signature)
    for other in (BODY + b"\0", BODY[:-1], b"\0" + BODY, b""):
        with pytest.raises(IdentityError):
            KEY.verifying.check("update", other, signature)


def test_S9_every_altered_byte_of_the_signature_is_seen() -> None:
    signature = KEY.sign("head", BODY)
    for place in range(len(signature)):
        altered = bytearray(signature)
        altered[place] ^= 1
        with pytest.raises(IdentityError):
            KEY.verifying.check("head", BODY, bytes(altered))


@given(st.binary(max_size=200))
def test_no_bytes_are_taken_for_a_signature(rubbish: bytes) -> None:
    with pytest.raises(IdentityError):
        KEY.verifying.check("head", BODY, rubbish)


def test_a_message_without_signature_is_called_so() -> None:
    with pytest.raises(IdentityError, match="this hello is not signed"):
        KEY.verifying.check("hello", BODY, b"")


def test_a_kind_that_nobody_knows_is_a_mistake_of_the_program() -> None:
    with pytest.raises(ValueError, match="no kind"):
        KEY.sign("updates", BODY)


@given(st.binary(max_size=300))
def test_no_bytes_are_taken_for_a_public_key(rubbish: bytes) -> None:
    with pytest.raises(IdentityError):
        VerifyingKey.from_bytes(rubbish)


@pytest.mark.parametrize(
    "arguments", [("-t", "ecdsa", "-b", "256"), ("-t", "ed25519"), ("-t", "rsa", "-b", "2048")]
)
def test_another_type_of_key_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = keygen(tmp_path, *arguments)
    with pytest.raises(IdentityError, match="wrong type of key; expected an ECDSA key on P-384"):
        SigningKey.load(path)
    with pytest.raises(IdentityError, match=r"node\.key\.pub: wrong type of key"):
        VerifyingKey.load(path.with_suffix(".key.pub"))


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    for kind in (SigningKey, VerifyingKey):
        with pytest.raises(IdentityError, match=r"cannot read .*none: No such file"):
            kind.load(tmp_path / "none")


def test_a_garbled_key_is_named_and_not_quoted(tmp_path: Path) -> None:
    path = keygen(tmp_path)
    secret = path.read_text().splitlines()[2]
    path.write_text(path.read_text().replace(secret, secret[:-5]))
    with pytest.raises(IdentityError, match=r"node\.key is no private key") as caught:
        SigningKey.load(path)
    assert secret[:20] not in str(caught.value)
    with pytest.raises(IdentityError, match="is no public key"):
        VerifyingKey.load(path)


def test_a_public_key_is_no_private_one(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="is no private key"):
        SigningKey.load(keygen(tmp_path).with_suffix(".key.pub"))


def test_a_passphrase_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match=r"passphrase.*ssh-keygen -p"):
        SigningKey.load(keygen(tmp_path, passphrase="secret"))


def test_a_signing_key_never_shows_itself() -> None:
    assert repr(KEY) == f"SigningKey({KEY.fingerprint})"


def test_keys_cost_no_torch() -> None:
    code = "import sys, fedlora.protos.envelope; print({'torch', 'flwr'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
