"""Who may call, and whom a caller trusts: every mismatch is named, with what to do."""

import asyncio
import logging
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import Result

from fedlora.adapters import EngineError, IdentityError
from fedlora.cli.key_checks import examine_keys
from fedlora.client.hub import Hub
from fedlora.protos import authority
from fedlora.protos.clientkeys import ClientKeys, make_client
from fedlora.protos.keymaking import introduce, make_authority, make_coordinator, make_node
from fedlora.protos.keys import CoordinatorKeys, NodeKeys
from fedlora.protos.tokens import Tokens, load_token
from fedlora.server.hosting import serve
from fedlora.server.rundir import RunDirectory

from .conftest import hosted, secret

Call = Callable[..., Result]
LIBRARY, MUSEUM = "l" * 40, "m" * 40


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    content = f"# who may call\nlibrary {LIBRARY}\n\nmuseum  {MUSEUM}\n"
    return secret(tmp_path / "tokens", content)


def greet(address: str, keys: Path | None = None, token: str | None = None) -> str:
    with Hub(address, ClientKeys.open(keys) if keys else None, token) as hub:
        return hub.describe().run


def test_certificates_let_in_those_whom_the_authority_knows(
    tiny_run: RunDirectory, coordinator: CoordinatorKeys, pki: Path, tmp_path: Path
) -> None:
    stranger = make_authority(tmp_path / "ca", 30)
    make_client(tmp_path / "stranger", stranger, "library", 30)
    shutil.copy(pki / "ca" / "ca.crt", tmp_path / "stranger" / "ca.crt")
    shutil.copytree(pki / "library", tmp_path / "bare")
    for name in ("client.crt", "client.key"):
        (tmp_path / "bare" / name).unlink()
    with hosted(tiny_run, coordinator) as address:
        assert greet(address, pki / "library") == "tiny"
        with pytest.raises(IdentityError, match=r"asks for a certificate, and there is no client"):
            greet(address, tmp_path / "bare")
        with pytest.raises(IdentityError, match=r"does not accept the certificate .*stranger"):
            greet(address, tmp_path / "stranger")
        with pytest.raises(IdentityError, match=r"answers by TLS alone: .* --keys"):
            greet(address)


def test_a_servers_certificate_lets_nobody_in(
    tiny_run: RunDirectory, coordinator: CoordinatorKeys, pki: Path, tmp_path: Path
) -> None:
    """Each certificate is for one use."""
    shutil.copytree(pki / "library", tmp_path / "thief")
    for name, ours in (("server.crt", "client.crt"), ("server.key", "client.key")):
        shutil.copy(pki / "coordinator" / name, tmp_path / "thief" / ours)
    with (
        hosted(tiny_run, coordinator) as address,
        pytest.raises(IdentityError, match="does not accept the certificate"),
    ):
        greet(address, tmp_path / "thief")


def test_tokens_let_in_their_owners(
    tiny_run: RunDirectory, coordinator: CoordinatorKeys, pki: Path, tokens: Path
) -> None:
    with hosted(tiny_run, coordinator, tokens) as address:
        assert greet(address, pki / "library", LIBRARY) == "tiny"
        with pytest.raises(IdentityError, match="does not know this token"):
            greet(address, pki / "library", "x" * 40)
        with pytest.raises(IdentityError, match=r"asks for a token: .* --token-file"):
            greet(address, pki / "library")


def test_a_node_may_call_with_its_own_folder_and_a_token(
    tiny_run: RunDirectory, coordinator: CoordinatorKeys, pki: Path, tokens: Path, tmp_path: Path
) -> None:
    make_node(tmp_path / "clinic", "clinic")
    assert isinstance(introduce(tmp_path / "clinic", pki / "coordinator"), NodeKeys)
    with hosted(tiny_run, coordinator, tokens) as address:
        assert greet(address, tmp_path / "clinic", LIBRARY) == "tiny"


def test_S13_another_authority(
    tiny_run: RunDirectory, coordinator: CoordinatorKeys, pki: Path, tokens: Path, tmp_path: Path
) -> None:
    make_client(tmp_path / "client", make_authority(tmp_path / "ca", 30), "library", 30)
    with (
        hosted(tiny_run, coordinator, tokens) as address,
        pytest.raises(IdentityError, match=r"is not signed by .*client/ca\.crt"),
    ):
        greet(address, tmp_path / "client", LIBRARY)


def test_S13_another_host_name(
    tiny_run: RunDirectory, coordinator: CoordinatorKeys, pki: Path, tokens: Path
) -> None:
    with (
        hosted(tiny_run, coordinator, tokens) as address,
        pytest.raises(IdentityError, match="certificate is not for localhost"),
    ):
        greet(address.replace("127.0.0.1", "localhost"), pki / "library", LIBRARY)


def test_S13_an_expired_certificate(
    tiny_run: RunDirectory, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = make_authority(tmp_path / "ca", 30)
    make_coordinator(tmp_path / "coordinator", ca, ["a"], 30)
    keys = CoordinatorKeys.open(tmp_path / "coordinator")
    make_client(tmp_path / "client", ca, "library", 30)
    begin = datetime.now(UTC) - timedelta(days=3)
    monkeypatch.setattr(authority, "_now", lambda: begin)
    key, certificate = authority.issue(ca.certificate, ca.key, ["a"], 1)
    (keys.folder / "server.key").write_bytes(key)
    (keys.folder / "server.crt").write_bytes(certificate)
    with (
        hosted(tiny_run, keys, tokens) as address,
        pytest.raises(IdentityError, match=r"expired, by this machine's clock at 20\d\d-"),
    ):
        greet(address, tmp_path / "client", LIBRARY)


def test_keys_for_a_hub_that_has_none(address: str, pki: Path) -> None:
    with pytest.raises(IdentityError, match="answers without TLS"):
        greet(address, pki / "library")


def test_nothing_leaves_this_machine_in_the_clear(tiny_run: RunDirectory) -> None:
    with pytest.raises(IdentityError, match=r"192\.0\.2\.7:8100 is another machine"):
        greet("192.0.2.7:8100")
    with pytest.raises(IdentityError, match=r"0\.0\.0\.0 can be reached from other machines"):
        asyncio.run(serve(tiny_run, "0.0.0.0", 0, None, None, lambda address: None))


def test_nobody_there(pki: Path) -> None:
    for keys in (None, pki / "library"):
        with pytest.raises(EngineError, match=r"no hub answers at 127\.0\.0\.1:9: .*refused"):
            greet("127.0.0.1:9", keys)


def test_the_commands_end_with_code_12(
    tiny_run: RunDirectory,
    coordinator: CoordinatorKeys,
    pki: Path,
    tokens: Path,
    tmp_path: Path,
    call: Call,
) -> None:
    wrong = secret(tmp_path / "wrong", "x" * 40)
    right = secret(tmp_path / "right", MUSEUM + "\n")
    keys = "--keys", pki / "museum"
    with hosted(tiny_run, coordinator, tokens) as address:
        for command in (("pull", address, "--out", tmp_path / "out"), ("watch", address)):
            for options in ((), keys, (*keys, "--token-file", wrong)):
                done = call(*command, *options)
                assert done.exit_code == 12, done.output
        done = call("pull", address, "--out", tmp_path / "out", *keys, "--token-file", right)
        assert done.exit_code == 0, done.output
    done = call("hub", tiny_run.path, "--host", "0.0.0.0")
    assert done.exit_code == 12


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("library", "line 1: expected a token of at least 32 characters"),
        ("library short", "line 1: expected a token of at least 32 characters"),
        (f"library {LIBRARY} more", "line 1: expected a token"),
        (f"a/b {LIBRARY}", "line 1: expected NAME TOKEN"),
        (f"a {LIBRARY}\na {MUSEUM}", "line 2: expected NAME TOKEN, with a name of its own"),
        (f"a {LIBRARY}\nb {LIBRARY}", "two parties have the same token"),
        ("# nobody\n", "names nobody"),
        (f"a {'ä' * 40}", "plain ASCII"),
    ],
)
def test_a_file_of_tokens_that_is_wrong(tmp_path: Path, content: str, reason: str) -> None:
    with pytest.raises(IdentityError, match=reason) as caught:
        Tokens.load(secret(tmp_path / "tokens", content))
    assert LIBRARY not in str(caught.value)  # S16


def test_S15_tokens_are_their_owners_alone(tmp_path: Path, tokens: Path) -> None:
    own = secret(tmp_path / "own", LIBRARY)
    assert load_token(own) == LIBRARY
    for path, load in ((own, load_token), (tokens, Tokens.load)):
        path.chmod(0o640)
        with pytest.raises(IdentityError, match="chmod 600"):
            load(path)


def test_S16_no_token_is_logged(
    tiny_run: RunDirectory,
    coordinator: CoordinatorKeys,
    pki: Path,
    tokens: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    with hosted(tiny_run, coordinator, tokens) as address:
        greet(address, pki / "library", LIBRARY)
        with pytest.raises(IdentityError) as caught:
            greet(address, pki / "library", "y" * 40)
    said = caplog.text + "".join(capfd.readouterr()) + str(caught.value)
    assert LIBRARY not in said
    assert "y" * 40 not in said


def test_a_client_folder_says_what_is_wrong_with_it(pki: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(pki / "library", tmp_path / "client")
    (folder / "client.key").chmod(0o644)
    with pytest.raises(IdentityError, match=r"client\.key: chmod 600"):
        ClientKeys.open(folder)
    (folder / "client.key").unlink()
    with pytest.raises(IdentityError, match=r"cannot read .*client\.key"):
        ClientKeys.open(folder)
    with pytest.raises(IdentityError, match=r"cannot read .*ca\.crt"):
        ClientKeys.open(tmp_path)


def test_the_command_makes_a_client(pki: Path, tmp_path: Path, call: Call) -> None:
    options = ("--ca", pki / "ca", "--coordinator", pki / "coordinator", "--out", tmp_path / "c")
    done = call("keys", "client", "archive", *options)
    assert done.exit_code == 0, done.output
    assert "the certificate of archive, valid until" in done.stdout
    keys = ClientKeys.open(tmp_path / "c")
    assert keys.coordinator == CoordinatorKeys.open(pki / "coordinator").signing.verifying
    assert (tmp_path / "c" / "client.key").stat().st_mode & 0o777 == 0o600
    assert call("keys", "client", "archive", *options).exit_code == 12


def test_doctor_knows_a_client(pki: Path, tmp_path: Path) -> None:
    trusted = CoordinatorKeys.open(pki / "coordinator").signing.fingerprint
    known, expiry = examine_keys(pki / "library")
    assert known.found == f"client of a hub, trusts coordinator {trusted}"
    assert "client.crt until 20" in expiry.found
