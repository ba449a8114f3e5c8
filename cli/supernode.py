"""The node's side of Flower's deployment engine: a SuperNode that serves until the run is done."""

import json
import time
from pathlib import Path

from fedlora.adapters import errors
from fedlora.client.node import NodePlace
from fedlora.client.signals import DONE, FAILED, STEP, clear, read_signal
from fedlora.models.threads import share, thread_environment
from fedlora.server.events import Listener, StepDone

from .processes import FLOWER_ENVIRONMENT, Child, free_port

PATIENCE = 300  # seconds to go on looking for a coordinator that doesn't answer
FAREWELL = 5.0  # seconds in which the last reply leaves
FATAL = ("BaseMismatchError", "DataError", "ModelError", "RecipeError")


def supernode(place: NodePlace, address: str) -> Child:
    """Start a node.

    Args:
        place: who it is.
        address: host:port of the coordinator.
    """
    state = place.state
    state.mkdir(parents=True, exist_ok=True)
    clear(state)
    values = {"name": place.name, "data": place.data, "state": state, "heldout": place.heldout}
    values |= {"model": place.model, "threads": place.threads}
    config = [f"{key}={json.dumps(str(value))}" for key, value in values.items() if value]
    command = ["flower-supernode", "--insecure", "--superlink", address]
    command += ["--port", str(free_port()), "--max-wait-time", str(PATIENCE)]
    command += ["--node-config", " ".join(config)]
    environment = {
        **FLOWER_ENVIRONMENT,
        **thread_environment(share(place.threads)),
        "FLWR_HOME": str(state / "flower"),
    }
    return Child(command, environment, state / "node.log")


def serve(place: NodePlace, child: Child, listener: Listener) -> None:
    """Wait until the run is done, telling `listener` of each training step.

    Raises:
        FedloraError: of the class that keeps this node from taking part.
        EngineError: if the SuperNode ended; for one, because no coordinator answered.
    """
    last = None
    while not (place.state / DONE).exists():
        child.check()
        failure = read_signal(place.state, FAILED)
        if failure and failure["error"] in FATAL:
            time.sleep(FAREWELL)  # let the coordinator have the reason too
            raise getattr(errors, failure["error"])(failure["message"])
        step = read_signal(place.state, STEP)
        if step and step != last:
            listener(StepDone(place.name, **step))
            last = step
        time.sleep(0.5)
    time.sleep(FAREWELL)


def default_state(name: str) -> Path:
    """Where a node keeps its state if it isn't told."""
    return Path.home() / ".local" / "state" / "fedlora" / name
