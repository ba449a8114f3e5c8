"""The gate before a real SuperLink: nodes' calls pass, everything else stays outside."""

import re
import shutil
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from fastapi.routing import APIRoute, iter_route_contexts
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink.main import create_app
from starlette.routing import Route

from fedlora.cli.processes import FLOWER_ENVIRONMENT, free_port, program
from fedlora.cli.registration import Registration
from fedlora.cli.superlink import superlink
from fedlora.protos.envelope import VerifyingKey
from fedlora.protos.keymaking import make_node, register
from fedlora.protos.keys import CoordinatorKeys, NodeKeys
from fedlora.recipes.loading import load_recipe
from fedlora.server.events import Event
from fedlora.server.gate import Gate
from fedlora.server.rundir import RunDirectory

from .conftest import Knock

PROTOBUF = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}


class Door(NamedTuple):
    """A gate, the run behind it, and what was said of its nodes."""

    gate: Gate
    run: RunDirectory
    keys: CoordinatorKeys
    said: list[Event]

    def asked(self) -> set[str]:
        """Which paths Flower was asked for, by anyone."""
        log = (self.run.path / "superlink.log").read_text()
        return set(re.findall(r'"[A-Z]+ (\S+) HTTP', log))


@pytest.fixture(scope="module")
def door(pki: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    keys, behind, said = CoordinatorKeys.open(pki / "coordinator"), free_port(), list[Event]()
    run = RunDirectory.create(tmp_path_factory.mktemp("door") / "run", load_recipe("demo"))
    with (
        Gate("127.0.0.1", 0, keys, behind, run.path / "gate.log") as gate,
        superlink(run, "127.0.0.1", behind, simulation=False, keys=keys),
        Registration(run, keys, gate, said.append),
    ):
        yield Door(gate, run, keys, said)


@pytest.fixture(scope="module")
def stranger(door: Door, pki: Path) -> Iterator[httpx.Client]:
    """Someone who holds only the authority's certificate."""
    base = f"https://127.0.0.1:{door.gate.port}"
    with httpx.Client(base_url=base, verify=str(pki / "ca" / "ca.crt"), timeout=20) as client:
        yield client


def signed(keys: NodeKeys, path: Path, late: float = 0.0) -> dict[str, str]:
    """The headers of Flower's node authentication."""
    private = load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    stamp = (datetime.now(UTC) - timedelta(seconds=late)).isoformat()
    signature = private.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": b64encode(keys.signing.verifying.pem).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": b64encode(signature).decode(),
    }


@pytest.fixture
def clinic(pki: Path) -> NodeKeys:
    return NodeKeys.open(pki / "clinic")


def routes() -> list[tuple[str, str]]:
    """Every method and path that the installed SuperLink serves, its documentation included."""
    served = [context.route for context in iter_route_contexts(create_app().routes)]
    known = [route for route in served if isinstance(route, Route | APIRoute)]
    assert len(known) == len(served)
    return sorted((method, route.path) for route in known for method in route.methods or ())


def test_7_a_ca_certificate_opens_no_route_but_health(stranger: httpx.Client, door: Door) -> None:
    paths = {path for _, path in routes()}
    assert len([path for path in paths if path.startswith("/v1/control/")]) > 10
    assert len([path for path in paths if path.startswith("/v1/runtime/")]) > 10
    assert len([path for path in paths if path.startswith("/v1/fleet/")]) > 10
    for method, route in routes():
        path = re.sub(r"\{\w+\}", "1", route)
        for asked in {method, "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"}:
            status = stranger.request(asked, path, headers=PROTOBUF).status_code
            if (asked, path) == ("GET", "/health"):
                assert status == 200
            elif asked == "POST" and path.startswith("/v1/fleet/"):
                assert status == 401
            else:
                assert status == 404, (asked, path)
    own = {"/health", "/v1/control/register-node", "/v1/runtime/acquire-task"}
    assert {path for path in door.asked() if not path.startswith("/v1/runtime/")} <= own
    assert not [path for path in door.asked() if path.startswith("/v1/fleet/")]


def test_7_a_registered_node_reaches_nothing_else_either(
    stranger: httpx.Client, clinic: NodeKeys, pki: Path
) -> None:
    headers = {**PROTOBUF, **signed(clinic, pki / "clinic" / "node.key")}
    for method, route in routes():
        if not route.startswith("/v1/fleet/") and route != "/health":
            assert stranger.request(method, route, headers=headers).status_code == 404


def test_7_flowers_own_command_line_finds_no_control(door: Door, pki: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        f'[superlink.gate]\naddress = "127.0.0.1:{door.gate.port}"\n'
        f'root-certificates = "{pki}/ca/ca.crt"\n'
    )
    app = shutil.copytree(door.run.path / "flower" / "app", tmp_path / "app")
    (app / "pyproject.toml").write_text(
        '[project]\nname = "evil"\nversion = "1.0.0"\n[tool.flwr.app]\npublisher = "evil"\n'
        '[tool.flwr.app.components]\nserverapp = "fedlora.server.app:app"\n'
        'clientapp = "fedlora.client.app:app"\n'
    )
    for command in (("run", str(app), "gate"), ("list", "gate"), ("stop", "1", "gate")):
        done = subprocess.run(
            [program("flwr"), *command],
            env={**FLOWER_ENVIRONMENT, "FLWR_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0, done.stdout
    assert not {"/v1/control/start-run", "/v1/control/list-runs"} & door.asked()


TRICKS = [
    b"POST //v1/control/list-runs",
    b"POST /v1//control/list-runs",
    b"POST /v1/fleet/../control/list-runs",
    b"POST /v1/fleet/..%2fcontrol/list-runs",
    b"POST /v1/fleet/%2e%2e/control/list-runs",
    b"POST /v1/fleet/..;/control/list-runs",
    b"POST /v1/fleet/./../control/list-runs",
    b"POST /v1/fleet/\\..\\control/list-runs",
    b"POST /v1%2fcontrol%2flist-runs",
    b"POST /V1/CONTROL/LIST-RUNS",
    b"POST /v1/control/list-runs?/v1/fleet/get-run",
    b"POST /v1/control/list-runs#/v1/fleet/get-run",
    b"POST https://localhost/v1/control/list-runs",
    b"POST https://localhost/v1/fleet/get-run",
    b"POST http://127.0.0.1/v1/control/list-runs",
    b"GET /health/../v1/control/list-runs",
    b"GET /health/",
    b"GET /health%00",
    b"OPTIONS *",
    b"CONNECT 127.0.0.1:80",
    b"TRACE /health",
    b"PRI *",
]


@pytest.mark.parametrize("target", TRICKS, ids=lambda value: value.decode())
def test_7_tricks_with_paths(
    door: Door, knock: Knock, pki: Path, clinic: NodeKeys, target: bytes
) -> None:
    before = door.asked()
    headers = {"Host": "localhost", **signed(clinic, pki / "clinic" / "node.key")}
    lines = [f"{name}: {value}".encode() for name, value in headers.items()]
    head = b"\r\n".join([target + b" HTTP/1.1", *lines, b"Connection: close", b"", b""])
    assert knock(door.gate.port, head).split(b" ")[1] in {b"400", b"404"}
    assert {path for path in door.asked() - before if "runtime" not in path} == set()


def test_7_no_second_request_is_smuggled_in(
    door: Door, knock: Knock, pki: Path, clinic: NodeKeys
) -> None:
    inner = b"POST /v1/control/list-runs HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    headers = signed(clinic, pki / "clinic" / "node.key").items()
    keys = b"".join(f"{name}: {value}\r\n".encode() for name, value in headers)
    start = b"POST /v1/fleet/get-run HTTP/1.1\r\nHost: localhost\r\n" + keys
    size = f"Content-Length: {len(inner)}\r\n".encode()
    for framing in (
        size + b"Transfer-Encoding: chunked\r\n",
        size + b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Content-Length: 0\r\nConnection: Content-Length\r\n",
        b"Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 0\r\n",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 0\r\n",
    ):
        knock(door.gate.port, start + framing + b"\r\n" + inner + b"GET / HTTP/1.0\r\n\r\n")
    assert "/v1/control/list-runs" not in door.asked()


def test_S10_only_a_registered_key_is_served(
    stranger: httpx.Client, clinic: NodeKeys, pki: Path
) -> None:
    other = NodeKeys.open(pki / "stranger")
    body = ActivateNodeRequest(
        public_key=other.signing.verifying.pem, heartbeat_interval=30
    ).SerializeToString()
    headers = {**PROTOBUF, **signed(other, pki / "stranger" / "node.key")}
    refused = stranger.post("/v1/fleet/activate-node", content=body, headers=headers)
    assert (refused.status_code, refused.text) == (401, "no registered key")
    assert stranger.post("/v1/fleet/register-node", content=body, headers=headers).is_error
    known = {"flwr-public-key": b64encode(clinic.signing.verifying.pem).decode()}
    for stolen in (known, {**headers, **known}):  # the public half alone is no key
        answer = stranger.post("/v1/fleet/get-run", headers={**PROTOBUF, **stolen})
        assert (answer.status_code, answer.text) != (401, "no registered key")  # so Flower's
        assert answer.status_code == 401


def test_S14_a_call_that_was_signed_long_ago_is_refused(
    stranger: httpx.Client, clinic: NodeKeys, pki: Path
) -> None:
    body = ActivateNodeRequest(
        public_key=clinic.signing.verifying.pem, heartbeat_interval=30
    ).SerializeToString()

    def activate(late: float) -> int:
        headers = {**PROTOBUF, **signed(clinic, pki / "clinic" / "node.key", late)}
        return stranger.post("/v1/fleet/activate-node", content=body, headers=headers).status_code

    assert [activate(late) for late in (400.0, -400.0, 0.0)] == [401, 401, 200]


def test_S10_a_node_may_come_later_and_go_again(
    door: Door, stranger: httpx.Client, pki: Path
) -> None:
    key = make_node(pki / "late", "late")
    headers = {"flwr-public-key": b64encode(key.pem).decode()}

    def served() -> bool:
        return stranger.get("/health", headers=headers).status_code == 200

    assert not served()
    register(pki / "late" / "late.pub", door.keys.folder)
    wait(served)
    (door.keys.nodes_folder / "late.pub").unlink()
    wait(lambda: not served())
    texts = [str(event) for event in door.said]
    assert any("late may take part" in text for text in texts)
    wait(lambda: "/v1/control/unregister-node" in door.asked())


def test_a_file_that_is_no_key_is_told_once_and_harms_nobody(
    door: Door, stranger: httpx.Client, clinic: NodeKeys, pki: Path
) -> None:
    def served(key: VerifyingKey) -> bool:
        headers = {"flwr-public-key": b64encode(key.pem).decode()}
        return stranger.get("/health", headers=headers).status_code == 200

    path, folder = door.keys.nodes_folder / "rubbish.pub", pki / "early"
    early = make_node(folder, "early")
    register(folder / "early.pub", door.keys.folder)
    wait(lambda: served(early))
    path.write_text("rubbish")
    try:
        complaint = "rubbish.pub is no public key"
        wait(lambda: any(complaint in str(event) for event in door.said))
        (door.keys.nodes_folder / "early.pub").unlink()
        wait(lambda: not served(early))  # though the folder can't be read whole
        assert served(clinic.signing.verifying)
    finally:
        path.unlink()
    assert len([event for event in door.said if complaint in str(event)]) == 1


def wait(until: Callable[[], bool], seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < limit
        time.sleep(0.1)
