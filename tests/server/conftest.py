"""How to knock at the gate of a federation."""

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

Knock = Callable[..., bytes]


@pytest.fixture(scope="session")
def knock(pki: Path) -> Knock:
    """Sends raw bytes to a port by TLS, trusting ca.crt, and reads until the end."""
    context = ssl.create_default_context(cafile=str(pki / "ca" / "ca.crt"))

    def send(port: int, *pieces: bytes, timeout: float = 20.0) -> bytes:
        answer = b""
        with (
            socket.create_connection(("127.0.0.1", port), timeout) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            for piece in pieces:
                connection.sendall(piece)
            while part := connection.recv(65536):
                answer += part
        return answer

    return send
