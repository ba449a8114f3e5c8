"""A SuperLink that strangers can't reach: on loopback, with the gate before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlora.adapters.errors import IdentityError
from fedlora.protos.addresses import is_loopback
from fedlora.protos.authority import LOOPBACK
from fedlora.protos.keys import CoordinatorKeys
from fedlora.server.events import Listener
from fedlora.server.gate import Gate
from fedlora.server.rundir import RunDirectory

from .processes import Child, free_port
from .registration import Registration
from .superlink import superlink


def keys_for(folder: Path | None, host: str) -> CoordinatorKeys | None:
    """The coordinator's keys; none are needed where only this machine can call.

    Raises:
        IdentityError: if the folder is not in order, or is needed and not given.
    """
    if folder is not None:
        return CoordinatorKeys.open(folder)
    if not is_loopback(host):
        raise IdentityError(
            f"--host {host} lets other machines call, and without keys anyone there could start, "
            "stop and read runs: make keys with `fedlora keys` and name their folder with --keys"
        )
    return None


@contextmanager
def guarded(
    run: RunDirectory, host: str, port: int, keys: CoordinatorKeys, listener: Listener
) -> Iterator[Child]:
    """A SuperLink for the nodes whose keys are registered, wherever they call from.

    Args:
        run: its directory gets the logs.
        host: public address to listen on.
        port: likewise.
        keys: for TLS, and who is registered.
        listener: told who may take part.

    Raises:
        FedloraError: if nobody can listen there, or a registered key is none.
    """
    behind = free_port()
    with (
        Gate(host, port, keys, behind, run.path / "gate.log") as gate,
        superlink(run, LOOPBACK, behind, simulation=False, keys=keys) as child,
        Registration(run, keys, gate, listener),
    ):
        yield child
