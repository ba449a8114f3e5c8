"""The ways that `transport.py` compares: real processes on loopback, started anew each time."""

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from transport_memory import Peaks, watch
from transport_task import PATIENCE, Task
from warm import flowers_own

from fedlora.cli.processes import Child, free_port
from fedlora.cli.superlink import flwr, superlink
from fedlora.cli.supernode import START, supernode, warm
from fedlora.client.channel import look
from fedlora.client.place import NodePlace
from fedlora.client.private_socket import socket_path
from fedlora.models.threads import thread_environment
from fedlora.recipes.schema import Recipe
from fedlora.server.rundir import RunDirectory

HERE = Path(__file__).parent
_APP = """
[project]
name = "transport"
version = "1.0.0"
description = "a head on its way"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedlora"

[tool.flwr.app.components]
serverapp = "{module}:coordinator"
clientapp = "{node}"

[tool.flwr.app.config]
{config}
"""


@dataclass(frozen=True)
class Delivery:
    """What it took to bring a head to all nodes: seconds to the last reply, and memory."""

    seconds: float
    peaks: Peaks


def recipe() -> Recipe:
    return Recipe.model_validate(
        {
            "name": "transport",
            "model": {"source": "smollm2-135m"},
            "train": {"threads": 1},
            "federation": {"min_nodes": 1},
        }
    )


def fedlora(scratch: Path, heads: Path, nodes: int) -> Iterator[Delivery]:
    """Packed messages, warm workers."""

    @contextmanager
    def start(place: NodePlace, address: str) -> Iterator[list[Child]]:
        socket, config = socket_path(place.state), json.dumps(place.config())
        command = ["python", str(HERE / "transport_ours.py"), str(socket), config]
        log = place.state / "worker.log"
        with (
            Child(command, thread_environment(1), log) as worker,
            supernode(place, address, warm(place)) as node,
        ):
            limit = time.monotonic() + START
            while look(socket, seconds=1.0) is None:
                worker.check()
                assert time.monotonic() < limit, worker.last_words()
            yield [worker, node]

    return _messages(scratch, heads, nodes, start, "transport_ours", "fedlora.client.app:app")


def plain(scratch: Path, heads: Path, nodes: int) -> Iterator[Delivery]:
    """Flower's own nodes and messages."""

    @contextmanager
    def start(place: NodePlace, address: str) -> Iterator[list[Child]]:
        with flowers_own(place, address, {"name": place.name}) as node:
            yield [node]

    return _messages(scratch, heads, nodes, start, "transport_plain", "transport_plain:node")


def hub(scratch: Path, heads: Path, nodes: int) -> Iterator[Delivery]:
    """`fedlora hub`, and a `fedlora pull` for each, with a token each; their starting counts."""
    tokens = {f"party-{i}": secrets.token_hex(32) for i in range(nodes)}
    _secret(scratch / "tokens", "\n".join(f"{name} {token}" for name, token in tokens.items()))
    for name, token in tokens.items():
        _secret(scratch / name, token)
    port, log = free_port(), scratch / "hub.log"
    command = ["fedlora", "hub", str(heads / "whole"), "--port", str(port)]
    command += ["--tokens", str(scratch / "tokens")]
    with Child(command, thread_environment(1), log) as server:
        while str(port) not in log.read_text():
            server.check()
            time.sleep(0.1)
        for round in range(2):
            yield _pulls(server, port, round, [scratch / name for name in tokens])


def _pulls(server: Child, port: int, round: int, tokens: Sequence[Path]) -> Delivery:
    """All at once."""
    with ExitStack() as stack:
        began, pulls = time.perf_counter(), []
        for token in tokens:
            command = ["fedlora", "pull", f"127.0.0.1:{port}", "--round", str(round)]
            command += ["--out", f"{token}-{round}", "--token-file", str(token)]
            child = Child(command, thread_environment(1), token.with_suffix(".log"))
            pulls.append(stack.enter_context(child))
        groups = {"coordinator": [server], **{str(i): [one] for i, one in enumerate(pulls)}}
        peaks = watch(groups, lambda: all(one.ended() for one in pulls), PATIENCE)
        seconds = time.perf_counter() - began
        for one in pulls:
            assert "exit code 0" in one.ended(), one.ended()
    return Delivery(seconds, peaks)


def _messages(
    scratch: Path,
    heads: Path,
    nodes: int,
    start: Callable[[NodePlace, str], AbstractContextManager[list[Child]]],
    module: str,
    app: str,
) -> Iterator[Delivery]:
    """An empty head, then the whole, each sent by a ServerApp of its own to the same nodes."""
    run, port = RunDirectory.create(scratch / "run", recipe()), free_port()
    bundle = run.path / "flower" / "app"
    with ExitStack() as stack:
        link = stack.enter_context(superlink(run, "127.0.0.1", port, simulation=False))
        groups = {"coordinator": [link]}
        for index in range(nodes):
            place = NodePlace(f"node-{index}", HERE, None, scratch / f"node-{index}", threads=1)
            groups[place.name] = stack.enter_context(start(place, f"127.0.0.1:{port}"))
        for head in ("empty", "whole"):
            task = Task(nodes, heads / head / "ledger", scratch / f"{head}.json")
            described = _APP.format(module=module, node=app, config=task.config())
            (bundle / "pyproject.toml").write_text(described)
            answer = flwr(run, ["run", str(bundle), "fedlora", "--format", "json"])
            assert "run-id" in answer, answer
            peaks = watch(groups, partial(_told, task, groups), PATIENCE)
            said = json.loads(task.out.read_text())
            size = sum(one.stat().st_size for one in task.head.rglob("residual.safetensors"))
            assert len(said["taken"]) == nodes, said
            assert min(said["taken"]) > 0.9 * size, said  # the rest is the file's header
            yield Delivery(said["seconds"], peaks)


def _told(task: Task, groups: Mapping[str, Sequence[Child]]) -> bool:
    """Whether the figures are there; what should run must run."""
    for child in chain.from_iterable(groups.values()):
        child.check()
    return task.out.exists()


def _secret(path: Path, content: str) -> None:
    path.touch(0o600)
    path.write_text(content + "\n")


def reachable() -> None:
    """Let the processes that are started find the apps in this folder."""
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
