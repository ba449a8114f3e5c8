"""What `fedlora join` says when it is not, or not yet, to be let in: one message, exit code 12."""

import re
import shutil
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import Result

from fedlora.adapters import IdentityError
from fedlora.cli.preflight import reach
from fedlora.cli.processes import free_port
from fedlora.protos import authority
from fedlora.protos.addresses import is_loopback
from fedlora.protos.keymaking import introduce, make_authority, make_coordinator, make_node
from fedlora.protos.keys import CoordinatorKeys, NodeKeys
from fedlora.server.gate import Gate

Call = Callable[..., Result]


class Healthy(BaseHTTPRequestHandler):
    """Answers as a coordinator does; its clock may be wrong."""

    ahead = 0.0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(time.time() + self.ahead)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(
    coordinator: Path | None, handler: type = Healthy, host: str = "127.0.0.1"
) -> Iterator[int]:
    """A server with a coordinator's certificate, or without TLS; gives its port."""
    server = HTTPServer((host, 0), handler)
    if coordinator is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(coordinator / "server.crt", coordinator / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def clinic(pki: Path) -> NodeKeys:
    return NodeKeys.open(pki / "clinic")


@pytest.fixture
def join(call: Call, tmp_path: Path) -> Callable[..., str]:
    """`fedlora join` that is refused: gives its message."""
    (tmp_path / "notes.jsonl").write_text('{"instruction": "Who?", "response": "I."}\n')

    def run(address: str, name: str, *options: object) -> str:
        data, state = tmp_path / "notes.jsonl", tmp_path / "state"
        arguments = ("--name", name, "--data", data, "--state-dir", state, *options)
        done = call("join", address, *arguments)
        assert done.exit_code == IdentityError.exit_code, done.output
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        return done.stderr

    return run


def test_the_right_coordinator_is_reached(pki: Path, clinic: NodeKeys) -> None:
    with serving(pki / "coordinator") as port:
        assert reach(f"localhost:{port}", clinic) == ""
        assert reach(f"127.0.0.1:{port}", clinic) == ""


def test_one_that_is_not_up_yet_is_waited_for(clinic: NodeKeys) -> None:
    assert reach(f"127.0.0.1:{free_port()}", clinic) == "[Errno 111] Connection refused"
    assert "Connection refused" in reach(f"127.0.0.1:{free_port()}", None)


def test_a_superlink_that_is_down_behind_its_gate_is_waited_for(
    pki: Path, clinic: NodeKeys, tmp_path: Path
) -> None:
    keys = CoordinatorKeys.open(pki / "coordinator")
    with Gate("127.0.0.1", 0, keys, 9, tmp_path / "gate.log") as gate:
        gate.admit([clinic.signing.verifying])
        assert reach(f"localhost:{gate.port}", clinic) == "it answers 502"


def test_S10_an_unregistered_node(pki: Path, join: Callable[..., str], tmp_path: Path) -> None:
    keys = CoordinatorKeys.open(pki / "coordinator")
    with Gate("127.0.0.1", 0, keys, 9, tmp_path / "gate.log") as gate:
        gate.admit(keys.nodes().values())
        said = join(f"localhost:{gate.port}", "stranger", "--keys", pki / "stranger")
    fingerprint = NodeKeys.open(pki / "stranger").signing.fingerprint
    assert f"does not know the key {fingerprint} of node stranger: hand in stranger.pub" in said


def test_S13_another_authority(pki: Path, join: Callable[..., str], tmp_path: Path) -> None:
    other = make_authority(tmp_path / "ca", 10)
    make_coordinator(tmp_path / "coordinator", other, ["localhost"], 10)
    with serving(tmp_path / "coordinator") as port:
        said = join(f"localhost:{port}", "clinic", "--keys", pki / "clinic")
    assert f"its certificate is not signed by {pki}/clinic/ca.crt" in said


def test_S13_another_host_name(pki: Path, join: Callable[..., str]) -> None:
    with serving(pki / "coordinator", host="127.1.1.1") as port:
        said = join(f"127.1.1.1:{port}", "clinic", "--keys", pki / "clinic")
    assert "its certificate is not for 127.1.1.1: call it by another name" in said


@pytest.mark.parametrize(("days", "reason"), [(-30, "has expired"), (30, "is not valid yet")])
def test_S13_an_expired_certificate_and_one_of_tomorrow(
    days: int,
    reason: str,
    tmp_path: Path,
    join: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = authority._now
    long_ago = real() - timedelta(days=100)
    with monkeypatch.context() as changed:
        changed.setattr(authority, "_now", lambda: long_ago)
        ca = make_authority(tmp_path / "ca", 1000)
        make_coordinator(tmp_path / "coordinator", ca, ["localhost"], 900)
        shifted = real() + timedelta(days=days)
        changed.setattr(authority, "_now", lambda: shifted)
        key, certificate = authority.issue(ca.certificate, ca.key, ["localhost"], 10)
    make_node(tmp_path / "clinic", "clinic")
    introduce(tmp_path / "clinic", tmp_path / "coordinator")
    (tmp_path / "coordinator" / "server.key").write_bytes(key)
    (tmp_path / "coordinator" / "server.crt").write_bytes(certificate)
    with serving(tmp_path / "coordinator") as port:
        said = join(f"localhost:{port}", "clinic", "--keys", tmp_path / "clinic")
    assert f"its certificate {reason}, by this machine's clock at 20" in said


@pytest.mark.parametrize(("ahead", "word"), [(400.0, "behind"), (-400.0, "ahead of")])
def test_S14_a_wrong_clock(pki: Path, join: Callable[..., str], ahead: float, word: str) -> None:
    handler = type("Wrong", (Healthy,), {"ahead": ahead})
    with serving(pki / "coordinator", handler) as port:
        said = join(f"localhost:{port}", "clinic", "--keys", pki / "clinic")
    assert re.search(rf"this machine's clock is (399|400|401) s {word} that of the coord", said)


def test_keys_against_a_coordinator_without(pki: Path, join: Callable[..., str]) -> None:
    with serving(None) as port:
        said = join(f"localhost:{port}", "clinic", "--keys", pki / "clinic")
    assert f"localhost:{port} answers without TLS" in said


def test_no_keys_against_a_coordinator_with(
    pki: Path, join: Callable[..., str], tmp_path: Path
) -> None:
    keys = CoordinatorKeys.open(pki / "coordinator")
    with Gate("127.0.0.1", 0, keys, 9, tmp_path / "gate.log") as gate:
        said = join(f"localhost:{gate.port}", "clinic")
    assert "answers by TLS alone: name this node's keys with --keys" in said


def test_other_machines_are_called_and_served_with_keys_alone(
    call: Call, join: Callable[..., str]
) -> None:
    assert "without keys anyone between could read and change" in join("192.0.2.7:8000", "clinic")
    done = call("coordinator", "demo", "--host", "0.0.0.0")
    assert done.exit_code == IdentityError.exit_code
    assert "make keys with `fedlora keys` and name their folder with --keys" in done.stderr


def test_the_keys_are_those_of_the_name(pki: Path, join: Callable[..., str]) -> None:
    said = join("localhost:8000", "harbour", "--keys", pki / "clinic")
    assert "--name harbour: the keys in" in said
    assert "are those of clinic" in said


def test_an_exposed_key_is_not_used(
    pki: Path, join: Callable[..., str], call: Call, tmp_path: Path
) -> None:
    for name in ("clinic", "coordinator"):
        shutil.copytree(pki / name, tmp_path / name)
        for path in (tmp_path / name).glob("*.key"):
            path.chmod(0o644)
    said = join("localhost:8000", "clinic", "--keys", tmp_path / "clinic")
    assert "node.key: chmod 600" in said
    done = call(
        "coordinator", "demo", "--keys", tmp_path / "coordinator", "--run-dir", tmp_path / "run"
    )
    assert done.exit_code == IdentityError.exit_code
    assert "server.key" in done.stderr
    assert "signing.key: chmod 600" in done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_what_stays_on_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "fed.example.org", ""])
def test_what_does_not(host: str) -> None:
    assert not is_loopback(host)
