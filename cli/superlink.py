"""The coordinator's side of Flower's deployment engine: a SuperLink, and a run submitted to it."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedlora.adapters import errors
from fedlora.adapters.errors import EngineError, FedloraError
from fedlora.models.threads import share, thread_environment
from fedlora.protos.keys import KEYS, CoordinatorKeys
from fedlora.recipes.loading import RUN_DIRECTORY
from fedlora.server.events import Event, Listener, RunDone, RunFailed, from_line
from fedlora.server.rundir import RunDirectory

from .processes import FLOWER_ENVIRONMENT, Child, program, require_free, wait_healthy

START = 120.0  # seconds for a SuperLink to answer, on a busy machine
SILENCE = 20.0  # seconds without an event after which Flower is asked whether the run lives
FAREWELL = 3.0  # seconds in which nodes fetch what is left for them

_APP = """
[project]
name = "fedlora"
version = "{version}"
description = "fedlora, installed on coordinator and nodes alike; this bundle holds no code"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedlora"

[tool.flwr.app.components]
serverapp = "fedlora.server.app:app"
clientapp = "fedlora.client.app:app"

[tool.flwr.app.config]
"""

_LINK = """
[superlink]
default = "fedlora"

[superlink.fedlora]
address = "127.0.0.1:{port}"
{security}
"""


@contextmanager
def superlink(
    run: RunDirectory,
    host: str,
    port: int,
    simulation: bool,
    keys: CoordinatorKeys | None = None,
) -> Iterator[Child]:
    """A SuperLink for one run.

    Args:
        run: its directory gets the logs; apps find it by their environment.
        host: address to listen on.
        port: likewise.
        simulation: whether nodes are played by Ray instead of connecting.
        keys: for TLS, and to serve registered nodes only.

    Raises:
        EngineError: if it can't listen there, or doesn't start.
    """
    require_free(host, port)
    home = run.path / "flower"
    (home / "app").mkdir(parents=True, exist_ok=True)
    security = "insecure = true"
    if keys is not None:
        security = f"root-certificates = {json.dumps(str(keys.authority))}"
    (home / "config.toml").write_text(_LINK.format(port=port, security=security))
    command = ["flower-superlink", "--host", host, "--port", str(port), *_security(keys)]
    command += ["--simulation"] if simulation else []
    environment = {
        **FLOWER_ENVIRONMENT,
        **thread_environment(share(run.recipe.train.threads, max(1, len(run.recipe.node)))),
        "FLWR_HOME": str(home),
        RUN_DIRECTORY: str(run.path),
        **({KEYS: str(keys.folder)} if keys is not None else {}),
    }
    with Child(command, environment, run.path / "superlink.log") as child:
        wait_healthy(child, port, START, keys.authority if keys is not None else None)
        yield child


def _security(keys: CoordinatorKeys | None) -> list[str]:
    if keys is None:
        return ["--insecure"]
    files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
    options = [f"--ssl-{option}={keys.folder / name}" for option, name in files.items()]
    return [*options, "--enable-supernode-auth"]


def submit(run: RunDirectory, federation: str = "") -> str:
    """Start the run on the SuperLink; returns Flower's id of it.

    Args:
        run: whose SuperLink is running.
        federation: Flower's federation configuration, for a simulation.

    Raises:
        EngineError: if Flower refuses.
    """
    from importlib.metadata import version

    home = run.path / "flower"
    (home / "app" / "pyproject.toml").write_text(_APP.format(version=version("fedlora")))
    command = ["run", str(home / "app"), "fedlora", "--format", "json"]
    answer = flwr(run, command + (["--federation-config", federation] if federation else []))
    if not answer.get("success", True) or "run-id" not in answer:
        raise EngineError(f"Flower didn't take the run: {answer}")
    return str(answer["run-id"])


def lead(run: RunDirectory, child: Child, listener: Listener, federation: str = "") -> None:
    """Start the run on its SuperLink, and pass on its events until it is done.

    Args:
        run: whose SuperLink is running.
        child: that SuperLink.
        listener: told of what happens from now on.
        federation: as in `submit`.

    Raises:
        FedloraError: of the class that stopped the coordinator's app.
        EngineError: if Flower lost the run.
    """
    log = run.path / "events.jsonl"
    before = log.stat().st_size if log.exists() else 0  # an earlier start's
    run_id = submit(run, federation)
    heard, status = time.monotonic(), "running"
    for event in _events(log, before):
        if event is not None:
            heard = time.monotonic()
            if isinstance(event, RunFailed):
                raise _as_error(event)
            listener(event)
            if isinstance(event, RunDone):
                time.sleep(FAREWELL)
                return
            continue
        child.check()
        if status != "running":  # and what it wrote before it ended has been read by now
            raise EngineError(f"the coordinator's app ended ({status}). {child.last_words()}")
        if time.monotonic() - heard > SILENCE:
            heard, status = time.monotonic(), _status(run, run_id)


def _events(path: Path, position: int) -> Iterator[Event | None]:
    """Events as they are written, from a byte of the log on; None while there is none."""
    rest = ""
    while True:
        text = ""
        if path.exists():
            with path.open(encoding="utf-8") as file:
                file.seek(position)
                text = file.read()
                position = file.tell()
        *lines, rest = (rest + text).split("\n")
        yield from (from_line(line) for line in lines)
        if not lines:
            yield None
            time.sleep(0.2)


def _status(run: RunDirectory, run_id: str) -> str:
    """What Flower says of the run: "running", or how it ended."""
    runs = flwr(run, ["list", "fedlora", "--format", "json"]).get("runs", [])
    status = next((str(one["status"]) for one in runs if str(one["run-id"]) == run_id), "unknown")
    return status if status.startswith("finished") or status == "unknown" else "running"


def flwr(run: RunDirectory, arguments: list[str]) -> dict[str, Any]:
    """Flower's command line, answering in JSON.

    Raises:
        EngineError: with what it says, if it fails.
    """
    environment = {**os.environ, **FLOWER_ENVIRONMENT, "FLWR_HOME": str(run.path / "flower")}
    done = subprocess.run(
        [program("flwr"), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        text = (done.stdout + done.stderr).strip()
        raise EngineError(f"flwr {arguments[0]} failed: {text[-2000:]}") from None
    return answer


def _as_error(event: RunFailed) -> FedloraError:
    kind = getattr(errors, event.error, FedloraError)
    error: FedloraError = kind(event.message)
    return error
