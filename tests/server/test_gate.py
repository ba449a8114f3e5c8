"""What the gate bears: big bodies pass piece by piece, slow and greedy peers are cut off."""

import asyncio
import hashlib
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from fedlora.adapters import EngineError
from fedlora.cli.processes import free_port
from fedlora.protos.keys import CoordinatorKeys, NodeKeys
from fedlora.server import gate as gate_module
from fedlora.server import pace, proxy
from fedlora.server.gate import Gate

from .conftest import Knock

BIG = 24 << 20


class Upstream:
    """A server that counts what comes and answers /v1/fleet/pull with a big body."""

    def __init__(self, keys: CoordinatorKeys) -> None:
        self.asked: list[str] = []
        self.headers: dict[str, str] = {}
        config = uvicorn.Config(
            self,
            port=0,
            lifespan="off",
            log_level="critical",
            ssl_certfile=keys.folder / "server.crt",
            ssl_keyfile=keys.folder / "server.key",
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])
        self.headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        digest, more = hashlib.sha256(), True
        while more:
            message = await receive()
            digest.update(message.get("body", b""))
            more = message.get("more_body", False)
        pulled = scope["path"] == "/v1/fleet/pull"
        body = b"y" * BIG if pulled else digest.hexdigest().encode()
        headers = [(b"content-length", str(len(body)).encode()), (b"x-secret", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    @property
    def port(self) -> int:
        while not self.server.started:
            time.sleep(0.01)
        return int(self.server.servers[0].sockets[0].getsockname()[1])


@pytest.fixture(scope="module")
def upstream(pki: Path) -> Iterator[Upstream]:
    server = Upstream(CoordinatorKeys.open(pki / "coordinator"))
    server.thread.start()
    yield server
    server.server.should_exit = True
    server.thread.join(5)


@pytest.fixture
def gate(pki: Path, upstream: Upstream, tmp_path: Path) -> Iterator[Gate]:
    keys = CoordinatorKeys.open(pki / "coordinator")
    with Gate("127.0.0.1", 0, keys, upstream.port, tmp_path / "gate.log") as opened:
        opened.admit(keys.nodes().values())
        yield opened


@pytest.fixture
def node(pki: Path) -> dict[str, str]:
    key = NodeKeys.open(pki / "clinic").signing.verifying
    return {"flwr-public-key": b64encode(key.pem).decode()}


@pytest.fixture
def client(pki: Path, gate: Gate, node: dict[str, str]) -> Iterator[httpx.Client]:
    base = f"https://localhost:{gate.port}"
    with httpx.Client(base_url=base, verify=str(pki / "ca" / "ca.crt"), headers=node) as one:
        yield one


def request(node: dict[str, str], size: int) -> bytes:
    lines = ["POST /v1/fleet/push HTTP/1.1", "Host: localhost", f"Content-Length: {size}"]
    lines += [f"{name}: {value}" for name, value in node.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def test_big_bodies_pass_unchanged_both_ways(client: httpx.Client) -> None:
    body = bytes(range(256)) * (BIG // 256)
    pushed = client.post("/v1/fleet/push", content=body)
    assert pushed.text == hashlib.sha256(body).hexdigest()
    assert client.post("/v1/fleet/pull").content == b"y" * BIG


def test_only_headers_that_matter_pass(client: httpx.Client, upstream: Upstream) -> None:
    sent = {"flwr-timestamp": "now", "cookie": "a", "x-forwarded-for": "b", "authorization": "c"}
    answer = client.post("/v1/fleet/push", headers=sent)
    assert upstream.headers["flwr-timestamp"] == "now"
    assert not {"cookie", "x-forwarded-for", "authorization"} & upstream.headers.keys()
    assert "x-secret" not in answer.headers


def test_many_calls_at_once(client: httpx.Client) -> None:
    async def calls() -> set[int]:
        async with httpx.AsyncClient(
            base_url=client.base_url, headers=client.headers, verify=_trusting(client), timeout=30
        ) as one:
            answers = [one.post("/v1/fleet/push", content=b"x" * 100_000) for _ in range(64)]
            return {answer.status_code for answer in await asyncio.gather(*answers)}

    assert asyncio.run(calls()) == {200}


def _trusting(client: httpx.Client) -> ssl.SSLContext:
    context: ssl.SSLContext = client._transport._pool._ssl_context  # type: ignore[attr-defined]
    return context


def test_S11_a_body_over_the_limit_is_refused_before_it_is_sent(
    gate: Gate, knock: Knock, node: dict[str, str], upstream: Upstream
) -> None:
    before, begun = len(upstream.asked), time.monotonic()
    answer = knock(gate.port, request(node, proxy.BODY + 1))
    assert answer.startswith(b"HTTP/1.1 413")
    assert time.monotonic() - begun < 1
    assert len(upstream.asked) == before


def test_S11_a_body_of_unknown_size_is_refused(client: httpx.Client) -> None:
    assert client.post("/v1/fleet/push", content=iter([b"x"] * 3)).status_code == 411
    assert client.request("GET", "/health", content=b"x").status_code == 413


def test_S11_a_stranger_cannot_send_a_body(gate: Gate, knock: Knock, upstream: Upstream) -> None:
    before = len(upstream.asked)
    answer = knock(gate.port, request({}, 10_000_000) + b"x" * 1000)
    assert answer.startswith(b"HTTP/1.1 401")
    assert len(upstream.asked) == before


def test_S11_a_slow_head_is_cut_off(gate: Gate, pki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "HEAD", 0.5)
    _trickle(gate, pki, b"POST /v1/fleet/push HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 1000)


def test_S11_a_slow_body_is_cut_off(
    gate: Gate, pki: Path, node: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pace, "PATIENCE", 1.0)
    head = request(node, 100_000)
    answer = _trickle(gate, pki, b"y" * 1000, head)
    assert answer.startswith(b"HTTP/1.1 408")
    assert "127.0.0.1 POST b'/v1/fleet/push': too slow" in (tmp_path / "gate.log").read_text()


def _trickle(gate: Gate, pki: Path, slowly: bytes, first: bytes = b"") -> bytes:
    """Send a byte each tenth of a second until the other side has had enough."""
    context = ssl.create_default_context(cafile=str(pki / "ca" / "ca.crt"))
    begun, answer = time.monotonic(), b""
    with (
        socket.create_connection(("127.0.0.1", gate.port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(first)
        connection.settimeout(0.1)
        for byte in slowly:
            try:
                connection.sendall(bytes([byte]))
                if not (part := connection.recv(1000)):
                    break
                answer += part
            except TimeoutError:
                continue
            except OSError:
                break
    assert time.monotonic() - begun < 8
    return answer


def test_S11_a_slow_reader_is_cut_off(
    gate: Gate, knock: Knock, pki: Path, node: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "PATIENCE", 0.5)
    context = ssl.create_default_context(cafile=str(pki / "ca" / "ca.crt"))
    with (
        socket.create_connection(("127.0.0.1", gate.port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(request(node, 0).replace(b"/push", b"/pull"))
        time.sleep(2)  # and reads nothing
        received = 0
        with suppress(OSError):
            while part := connection.recv(1 << 20):
                received += len(part)
    assert received < BIG


def test_connections_are_bounded(
    pki: Path, upstream: Upstream, tmp_path: Path, knock: Knock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "CONNECTIONS", 4)
    keys = CoordinatorKeys.open(pki / "coordinator")
    context = ssl.create_default_context(cafile=str(pki / "ca" / "ca.crt"))
    with Gate("127.0.0.1", 0, keys, upstream.port, tmp_path / "gate.log") as few:
        few.admit([])
        held = [
            context.wrap_socket(
                socket.create_connection(("127.0.0.1", few.port)), server_hostname="localhost"
            )
            for _ in range(4)
        ]
        ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert knock(few.port, ask).startswith(b"HTTP/1.1 503")  # which nodes try again
        for connection in held:
            connection.close()
        time.sleep(0.5)
        assert knock(few.port, ask).startswith(b"HTTP/1.1 200")


def test_rubbish_harms_nobody(gate: Gate, knock: Knock, client: httpx.Client) -> None:
    with socket.create_connection(("127.0.0.1", gate.port), 10) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")  # without TLS
        assert plain.recv(1000) == b""
    assert knock(gate.port, b"\x00\xff" * 100 + b"\r\n\r\n").startswith(b"HTTP/1.1 400")
    with suppress(OSError):  # cut off while it still talks
        knock(gate.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 500_000)
    assert client.get("/health").status_code == 200


def test_a_dead_superlink_is_a_reason_to_try_again(pki: Path, tmp_path: Path, knock: Knock) -> None:
    keys = CoordinatorKeys.open(pki / "coordinator")
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with Gate("127.0.0.1", 0, keys, 9, tmp_path / "gate.log") as lonely:
        assert knock(lonely.port, ask).startswith(b"HTTP/1.1 503")  # nobody is admitted yet
        lonely.admit([])
        assert knock(lonely.port, ask).startswith(b"HTTP/1.1 502")
    assert "Flower does not answer: ConnectError" in (tmp_path / "gate.log").read_text()


def test_a_port_in_use_is_named(pki: Path, gate: Gate, tmp_path: Path) -> None:
    keys = CoordinatorKeys.open(pki / "coordinator")
    with pytest.raises(EngineError, match=f"cannot listen on 127.0.0.1:{gate.port}: Address"):
        Gate("127.0.0.1", gate.port, keys, 9, tmp_path / "gate.log").__enter__()


def test_a_gate_can_be_opened_again(pki: Path, tmp_path: Path, knock: Knock) -> None:
    keys, port = CoordinatorKeys.open(pki / "coordinator"), free_port()
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    for _ in range(3):
        with Gate("127.0.0.1", port, keys, 9, tmp_path / "gate.log"):
            assert knock(port, ask).startswith(b"HTTP/1.1 503")
