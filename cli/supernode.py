"""The processes of a node: a worker that holds the model, and Flower's SuperNode before it.

Both are kept going: they are started again when they end, and the worker is also when it hangs. A
coordinator that is away is waited for, but not for ever.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedlora.adapters import errors
from fedlora.adapters.errors import EngineError
from fedlora.client.channel import SILENCE, START, look
from fedlora.client.place import NodePlace
from fedlora.client.private_socket import socket_path
from fedlora.models.threads import share, thread_environment
from fedlora.protos.worker_pb2 import Standing
from fedlora.server.events import Listener, Notice, StepDone

from .processes import FLOWER_ENVIRONMENT, Child, free_port
from .supervision import Supervised

PATIENCE = 300.0  # seconds to go on looking for a coordinator that doesn't answer
FAREWELL = 5.0  # seconds in which the last reply leaves
FATAL = ("BaseMismatchError", "DataError", "IdentityError", "ModelError", "RecipeError")
# Flower holds a message in pieces of 5 MiB, which glibc would keep for later when they are freed.
_LEAN = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
_PYTHON = (Path(sys.executable).name, "-P", "-m")


def warm(place: NodePlace) -> dict[str, str]:
    """The configuration of a node whose worker runs."""
    return {"worker": str(socket_path(place.state))}


def worker(place: NodePlace) -> Child:
    """Start the process that holds a node's model."""
    socket, config = socket_path(place.state), json.dumps(place.config())
    return Child(
        [*_PYTHON, "fedlora.client.worker", str(socket), config],
        thread_environment(share(place.threads)),
        place.state / "worker.log",
        "the worker",
    )


def supernode(place: NodePlace, address: str, config: Mapping[str, str]) -> Child:
    """Start the process that speaks to the coordinator.

    Args:
        place: who the node is.
        address: host:port of the coordinator.
        config: what the node's ClientApp is told: `warm(place)`, or `place.config()` for one that
            loads the model itself, each time anew.
    """
    values = [f"{key}={json.dumps(value)}" for key, value in config.items()]
    command = [*_PYTHON, "fedlora.client.supernode", *_security(place.keys)]
    command += ["--superlink", address, "--port", str(free_port())]
    command += ["--node-config", " ".join(values)]
    environment = {**FLOWER_ENVIRONMENT, "FLWR_HOME": str(place.state / "flower")}
    if "worker" in config:  # these processes then only pass messages on
        environment |= _LEAN
    return Child(command, environment, place.state / "node.log", "the SuperNode")


def _security(keys: Path | None) -> list[str]:
    if keys is None:
        return ["--insecure"]
    files = ["--root-certificates", str(keys / "ca.crt")]
    return [*files, "--auth-supernode-private-key", str(keys / "node.key")]


def serve(
    place: NodePlace,
    address: str,
    away: Callable[[], str],
    listener: Listener,
    patience: float = PATIENCE,
) -> None:
    """Take part until the run is done, telling `listener` of each training step.

    Args:
        place: who takes part.
        address: host:port of the coordinator.
        away: says why the coordinator can't be reached; empty if it can.
        listener: told of what happens.
        patience: seconds without a coordinator, or without a process that lasts.

    Raises:
        FedloraError: of the class that keeps this node from taking part.
        EngineError: when patience is over.
    """

    def tell(text: str) -> None:
        listener(Notice(f"node {place.name}: {text}"))

    with (
        Supervised(lambda: worker(place), patience, tell) as model,
        Supervised(lambda: supernode(place, address, warm(place)), patience, tell) as node,
    ):
        contact, pulse, last = _Contact(away, address, patience), _Pulse(model, place), Standing()
        while not (standing := pulse.take()).done:
            model.tend()
            node.tend()
            contact.check(node)
            if standing.failure.error in FATAL:
                time.sleep(FAREWELL)  # let the coordinator have the reason too
                raise getattr(errors, standing.failure.error)(standing.failure.message)
            if standing.HasField("step") and standing.step != last.step:
                step = standing.step
                listener(
                    StepDone(place.name, step.step, step.steps, step.loss, step.tokens_per_second)
                )
            last = standing
            time.sleep(0.5)
        time.sleep(FAREWELL)


def default_state(name: str) -> Path:
    """Where a node keeps its state if it isn't told."""
    return Path.home() / ".local" / "state" / "fedlora" / name


class _Pulse:
    """Looks at the worker, and kills one that hangs."""

    def __init__(self, model: Supervised, place: NodePlace) -> None:
        self._model, self._socket = model, socket_path(place.state)
        self._answered = 0.0
        self._standing = Standing()

    def take(self) -> Standing:
        """How things stand, as far as is known."""
        found, now = look(self._socket, seconds=1.0), time.monotonic()
        if found is not None:
            self._standing, self._answered = found, now
        elif now > max(self._answered + SILENCE, self._model.since + START):
            self._model.kill(f"it hasn't answered for {SILENCE:g} s")
        return self._standing


class _Contact:
    """Watches for how long the coordinator is away."""

    def __init__(self, away: Callable[[], str], address: str, patience: float) -> None:
        self._away, self._address, self._patience = away, address, patience
        self._heard = self._looked = time.monotonic()

    def check(self, node: Supervised) -> None:
        """Ask now and then.

        Raises:
            EngineError: if the coordinator has been away for too long.
        """
        now = time.monotonic()
        if now - self._looked < 5.0:
            return
        self._looked, reason = now, self._away()
        if not reason:
            self._heard = now
        elif now - self._heard > self._patience:
            raise EngineError(
                f"no coordinator answered at {self._address} for {self._patience:g} s: {reason}; "
                f"see that it runs, then join again. {node.child.last_words()}"
            )
