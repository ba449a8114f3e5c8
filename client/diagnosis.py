"""Why a hub can't be called: gRPC says "connection failed" whatever is wrong, TLS itself knows."""

import socket
import ssl

from fedlora.adapters.errors import IdentityError
from fedlora.protos.addresses import split
from fedlora.protos.clientkeys import ClientKeys
from fedlora.protos.distrust import distrust

TIMEOUT = 5.0  # seconds


def diagnose(address: str, keys: ClientKeys | None) -> None:
    """Greet the hub as gRPC would.

    Raises:
        IdentityError: if it is another party, or doesn't accept this one. Otherwise all is well as
            far as keys go, or nobody is there.
    """
    host, port = split(address)
    try:
        _greet(host, port, keys)
    except ssl.SSLCertVerificationError as error:
        raise IdentityError(
            f"{address}: {distrust(error, host, keys.authority if keys else None)}"
        ) from None
    except ssl.SSLError:
        if keys is not None:
            raise IdentityError(
                f"{address} answers without TLS: it is another service, or a hub without --keys"
            ) from None
    except OSError:
        return


def _greet(host: str, port: int, keys: ClientKeys | None) -> None:
    """A handshake, and the first byte after it: a hub hangs up there if it wants a certificate."""
    context = ssl.create_default_context(cafile=str(keys.authority) if keys else None)
    context.set_alpn_protocols(["h2"])
    if keys is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # whoever it is
    elif keys.own:
        context.load_cert_chain(keys.folder / "client.crt", keys.folder / "client.key")
    with (
        socket.create_connection((host, port), TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname=host) as greeted,
    ):
        if keys is None:
            raise IdentityError(
                f"{host}:{port} answers by TLS alone: name a folder with its ca.crt with --keys"
            )
        if not greeted.recv(1):
            raise IdentityError(f"{host}:{port}: {_refusal(keys)}")


def _refusal(keys: ClientKeys) -> str:
    if keys.own is None:
        return (
            f"the hub asks for a certificate, and there is no client.crt in {keys.folder}: its "
            "operator makes one with `fedlora keys client`"
        )
    return (
        f"the hub does not accept the certificate {keys.folder / 'client.crt'}: its authority did "
        "not sign it, or it has expired there"
    )
