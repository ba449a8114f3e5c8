"""The coordinator's public door: TLS outside, Flower's SuperLink on loopback behind it.

Someone who holds only the authority's certificate, as every node does, could otherwise start, stop
and read runs, because Flower's control of them asks for no credentials.
"""

import asyncio
import logging
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType

import httpx
import uvicorn

from fedlora.adapters.errors import EngineError
from fedlora.protos.authority import LOOPBACK
from fedlora.protos.envelope import VerifyingKey
from fedlora.protos.keys import CoordinatorKeys

from .pace import PatientProtocol
from .proxy import Proxy

CONNECTIONS = 512  # at once; a node uses about five
ANSWER = 60.0  # seconds for Flower to go on with an answer
IDLE = 3.0  # seconds after which a connection to Flower is closed; Flower's side closes it after 5
GRACE = 5.0  # seconds to end in
LOG_BYTES = 1 << 20

_LOGGERS = ("fedlora.gate", "uvicorn.error")


class Gate:
    """Serves nodes from a thread of this process for as long as it is open.

    Attributes:
        port: where it listens.
    """

    def __init__(self, host: str, port: int, keys: CoordinatorKeys, behind: int, log: Path) -> None:
        """A gate that is not open yet.

        Args:
            host: address to listen on.
            port: likewise; 0 for any.
            keys: whose certificate to show.
            behind: Flower's port on loopback.
            log: file for what was refused.
        """
        self.port, self._host = port, host
        self._upstream = _upstream(keys, behind)
        self._proxy = Proxy(self._upstream)
        self._server = uvicorn.Server(_config(self._proxy, keys))
        self._thread = threading.Thread(target=self._serve, name="gate", daemon=True)
        self._log = RotatingFileHandler(log, maxBytes=LOG_BYTES, backupCount=1, delay=True)
        self._log.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def admit(self, nodes: Iterable[VerifyingKey]) -> None:
        """Serve these nodes from now on, and no others; before the first time nobody is."""
        self._proxy.admitted = frozenset(b64encode(node.pem) for node in nodes)

    def __enter__(self) -> "Gate":
        """Listen.

        Raises:
            EngineError: if nobody can listen there.
        """
        self._socket = _listen(self._host, self.port)
        self.port = int(self._socket.getsockname()[1])
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.addHandler(self._log)
            logger.setLevel(logging.WARNING)
            logger.propagate = False
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, and cut off whoever is still there."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(GRACE)
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self._log)
        self._log.close()

    def _serve(self) -> None:
        async def serve() -> None:
            async with self._upstream:
                await self._server.serve(sockets=[self._socket])

        asyncio.run(serve())


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket that says it is TCP: only then does asyncio send small answers at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise EngineError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listening


def _config(proxy: Proxy, keys: CoordinatorKeys) -> uvicorn.Config:
    return uvicorn.Config(
        proxy,
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=3600,  # PatientProtocol has a shorter patience
        ssl_certfile=keys.folder / "server.crt",
        ssl_keyfile=keys.folder / "server.key",
    )


def _upstream(keys: CoordinatorKeys, port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"https://{LOOPBACK}:{port}",
        verify=ssl.create_default_context(cafile=str(keys.authority)),
        trust_env=False,  # no proxy may come between
        timeout=ANSWER,
        limits=httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=IDLE),
    )
