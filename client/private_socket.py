"""A Unix socket for one user alone.

Three things keep others out:
- The folder of the socket belongs to this user and nobody else may enter it (mode 0700), so the
  kernel lets no one else connect; and a client that finds another owner or mode doesn't connect.
- The socket itself has mode 0600.
- Should both be lost, by a careless chmod or a file system without modes, the server asks the
  kernel who is at the other end (SO_PEERCRED) before it serves a call, and cuts off other users.
  gRPC doesn't show credentials, but its connections are open files of the server's process.
"""

import hashlib
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import grpc

from fedlora.adapters.errors import EngineError

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

_LONGEST = 107  # bytes of a path in sockaddr_un, without the final zero


def socket_path(state: Path) -> Path:
    """Where the worker of the node with this state folder listens; the folder for it is made.

    It is `state/worker/socket`, or, if that is too long for the kernel, lies below
    XDG_RUNTIME_DIR or else the temporary folder, under a name made from `state`.

    Raises:
        EngineError: if the folder is another user's.
    """
    folder = state.absolute() / "worker"
    if len(os.fsencode(folder / "socket")) > _LONGEST:
        root = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        folder = Path(root) / f"fedlora-{os.getuid()}-{name}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid == os.getuid():
        folder.chmod(0o700)
    require_own(folder / "socket")
    return folder / "socket"


def require_own(path: Path) -> None:
    """See that the socket at `path` can only be this user's.

    Raises:
        EngineError: if its folder is missing, another user's, or open to others.
    """
    try:
        found = path.parent.lstat()
    except OSError as error:
        raise EngineError(f"{path.parent}: {error.strerror}; is `fedlora join` running?") from None
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise EngineError(
            f"{path.parent} belongs to user {found.st_uid} and has the mode "
            f"{stat.S_IMODE(found.st_mode):o}; expected user {os.getuid()} and 700: remove it"
        )


def target(path: Path) -> str:
    """The socket as gRPC names it."""
    return f"unix:{quote(str(path))}"


class OnlyOwner(grpc.ServerInterceptor):  # type: ignore[type-arg]  # of any service
    """Refuses every call while another user is connected, and cuts that connection."""

    def __init__(self, path: Path) -> None:
        """Watch the connections to the socket at `path`."""
        self._path = str(path)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "Handler | None"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Serve the call if all connections are this user's."""
        strangers = _cut_off_strangers(self._path)
        if not strangers:
            return continuation(handler_call_details)

        def refuse(request: Any, context: grpc.ServicerContext) -> None:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"not for user {strangers}")

        return grpc.stream_stream_rpc_method_handler(refuse)


def _cut_off_strangers(path: str) -> list[int]:
    """End every connection of another user to the socket at `path`; returns these users."""
    strangers = []
    for connection in _open_sockets():
        with connection:
            if connection.family == socket.AF_UNIX and connection.getsockname() == path:
                user = _user(connection)
                if user != os.getuid():
                    connection.shutdown(socket.SHUT_RDWR)
                    strangers.append(user)
    return strangers


def _open_sockets() -> Iterator[socket.socket]:
    """Copies of all sockets that this process has open."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # closed meanwhile, or no socket
            copy = os.dup(int(name))
            try:
                found = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            yield found


def _user(connection: socket.socket) -> int:
    """The user at the other end; of a socket that only listens, this process's own."""
    if not hasattr(socket, "SO_PEERCRED"):  # not Linux: the folder's mode has to do
        return os.getuid()
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)
