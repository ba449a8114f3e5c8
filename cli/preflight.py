"""Before and while a node serves: can the coordinator be reached, and are both who they should be?

Flower's own client goes on trying for minutes whatever is wrong, and says "connection attempt
failed". One small request by the same certificate and key tells which it is.
"""

import socket
import ssl
from base64 import b64encode
from contextlib import closing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    RemoteDisconnected,
)

from fedlora.adapters.errors import IdentityError
from fedlora.protos.addresses import split
from fedlora.protos.distrust import distrust
from fedlora.protos.keys import NodeKeys

TIMEOUT = 5.0  # seconds
TOLERANCE = 300.0  # seconds that clocks may differ; Flower refuses a node beyond that


def reach(address: str, keys: NodeKeys | None) -> str:
    """Ask the coordinator for its health.

    Args:
        address: host:port.
        keys: this node's; None to ask without TLS.

    Returns:
        Why it can't be reached for now; empty if it answers.

    Raises:
        IdentityError: if it never will: another party answers there, or it doesn't know this node.
    """
    host, port = split(address)
    try:
        response = _ask(host, port, keys)
    except ssl.SSLCertVerificationError as error:
        raise IdentityError(
            f"{address}: {distrust(error, host, keys.authority if keys else None)}"
        ) from None
    except (OSError, HTTPException) as error:
        if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
            raise IdentityError(
                f"{address} answers without TLS: it is another service, or a coordinator that was "
                "started without --keys"
            ) from None
        if keys is None and isinstance(error, RemoteDisconnected) and _speaks_tls(host, port):
            raise IdentityError(
                f"{address} answers by TLS alone: name this node's keys with --keys"
            ) from None
        return str(error) or type(error).__name__
    if response.status == HTTPStatus.UNAUTHORIZED and keys is not None:
        raise IdentityError(
            f"the coordinator at {address} does not know the key {keys.signing.fingerprint} of "
            f"node {keys.name}: hand in {keys.name}.pub, for `fedlora keys register` there"
        )
    _check_clock(address, response.headers["Date"])
    return "" if response.status == HTTPStatus.OK else f"it answers {response.status}"


def _ask(host: str, port: int, keys: NodeKeys | None) -> HTTPResponse:
    if keys is None:
        connection, headers = HTTPConnection(host, port, timeout=TIMEOUT), {}
    else:
        context = ssl.create_default_context(cafile=str(keys.authority))
        connection = HTTPSConnection(host, port, timeout=TIMEOUT, context=context)
        headers = {"flwr-public-key": b64encode(keys.signing.verifying.pem).decode()}
    with closing(connection):
        connection.request("GET", "/health", headers=headers)
        return connection.getresponse()


def _check_clock(address: str, date: str | None) -> None:
    """Flower refuses calls that seem to be signed long ago, or in the future.

    Raises:
        IdentityError: if the clocks differ by more than it allows.
    """
    if date is None:
        return
    ahead = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    if abs(ahead) > TOLERANCE:
        raise IdentityError(
            f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} "
            f"that of the coordinator at {address}; at most {TOLERANCE:.0f} s are allowed: set it"
        )


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # whoever it is
    try:
        with (
            socket.create_connection((host, port), TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False
