"""The hub as a server: where it listens, by which keys, and how long a connection may be idle."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc

from fedlora.adapters import EngineError, IdentityError
from fedlora.protos.addresses import is_loopback, joined
from fedlora.protos.hub_pb2_grpc import add_HubServicer_to_server
from fedlora.protos.keyfiles import read
from fedlora.protos.keys import CoordinatorKeys
from fedlora.protos.tokens import Tokens

from .doorkeeper import Doorkeeper, Identify, by_certificate, by_place, by_token
from .hub import HubService
from .rundir import RunDirectory

GRACE = 1.0  # seconds in which streams may end when the hub stops; pulls go on where they stopped

_OPTIONS = [
    ("grpc.so_reuseport", 0),  # two hubs on one port would share its calls unseen
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),  # a watch may have nothing to say for long
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients ask every 20 s
]


async def serve(
    run: RunDirectory,
    host: str,
    port: int,
    keys: CoordinatorKeys | None,
    tokens: Path | None,
    ready: Callable[[str], None],
) -> None:
    """Serve a run until this task is cancelled.

    Args:
        run: whose heads to give out.
        host: address to listen on.
        port: likewise; 0 for any that is free.
        keys: the coordinator's, for TLS and signatures; None on loopback alone.
        tokens: file with the token of each party; without one, TLS asks for certificates.
        ready: told the address.

    Raises:
        IdentityError: if others could listen in, or the tokens are not as they should be.
        EngineError: if it can't listen there.
    """
    if keys is None and not is_loopback(host):
        raise IdentityError(
            f"{host} can be reached from other machines: name the coordinator's keys with --keys, "
            "or listen on 127.0.0.1"
        )
    doorkeeper = Doorkeeper(_identify(keys, tokens))
    server = grpc.aio.server(interceptors=[doorkeeper], options=_OPTIONS)
    add_HubServicer_to_server(HubService(run, keys.signing if keys else None), server)
    try:
        if keys is None:
            bound = server.add_insecure_port(joined(host, port))
        else:
            bound = server.add_secure_port(joined(host, port), _credentials(keys, tokens is None))
    except RuntimeError:
        raise EngineError(
            f"cannot listen on {joined(host, port)}; stop what uses it, or choose another with "
            "--port"
        ) from None
    await server.start()
    try:
        ready(joined(host, bound))
        await server.wait_for_termination()
    finally:
        await server.stop(GRACE)


def _identify(keys: CoordinatorKeys | None, tokens: Path | None) -> Identify:
    if tokens is not None:
        return partial(by_token, Tokens.load(tokens))
    return by_certificate if keys is not None else by_place


def _credentials(keys: CoordinatorKeys, certificates: bool) -> grpc.ServerCredentials:
    own = [(read(keys.folder / "server.key"), read(keys.folder / "server.crt"))]
    authority = read(keys.authority) if certificates else None
    return grpc.ssl_server_credentials(own, authority, require_client_auth=certificates)
