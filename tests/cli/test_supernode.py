"""A node's processes under supervision, without a coordinator."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from fedlora.adapters import EngineError, RunError
from fedlora.cli import engines, supernode, supervision
from fedlora.cli.processes import Child, free_port, unhealthy
from fedlora.cli.supervision import Supervised
from fedlora.client.place import NodePlace
from fedlora.client.private_socket import socket_path
from fedlora.server.events import Event, Notice

# A worker without a model, which starts in a moment.
STAND = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from fedlora.protos.worker_pb2 import Standing
from fedlora.protos.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server
class Stand(WorkerServicer):
    def Look(self, request, context):
        return Standing()
server = grpc.server(ThreadPoolExecutor(1))
add_WorkerServicer_to_server(Stand(), server)
server.add_insecure_port(f"unix:{sys.argv[1]}")
server.start()
server.wait_for_termination()
"""


def stand(place: NodePlace) -> Child:
    command = [Path(sys.executable).name, "-c", STAND, str(socket_path(place.state))]
    return Child(command, {}, place.state / "worker.log", "the worker")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supernode, "worker", stand)
    monkeypatch.setattr(supervision, "PAUSES", (0.1,))


@pytest.fixture
def place(tmp_path: Path) -> NodePlace:
    data = tmp_path / "data.jsonl"
    data.write_text('{"instruction": "a", "response": "b"}\n')
    return NodePlace("site", data, None, tmp_path / "state", threads=1)


def pid(kept: Supervised) -> int:
    return kept.child._process.pid


def test_a_coordinator_that_stays_away_is_waited_for_in_bounds_and_named(place: NodePlace) -> None:
    address = f"127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(EngineError, match=f"no coordinator answered at {address} for 3 s: .*refus"):
        supernode.serve(
            place, address, lambda: unhealthy(f"http://{address}"), lambda event: None, patience=3.0
        )
    assert time.monotonic() - began < 60


def test_a_supernode_that_ends_is_started_again(
    place: NodePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is one that was refused, as Flower refuses a node that returns within a minute."""
    started: list[int] = []

    def refused(*_: object) -> Child:
        started.append(1)
        command = [*supernode._PYTHON, "json.tool", "/no such file"]
        return Child(command, {}, place.state / "node.log", "the SuperNode")

    monkeypatch.setattr(supernode, "supernode", refused)
    said: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, Notice):
            said.append(event.text)

    with pytest.raises(EngineError, match=r"(?s)given up after 3 s of this: .*no such file"):
        supernode.serve(place, "127.0.0.1:9", lambda: "", hear, patience=3.0)
    assert len(started) >= 3
    assert said[0].startswith(
        "node site: the SuperNode ended with exit code 2; it is started again"
    )


def test_a_worker_that_hangs_is_killed_and_another_answers(
    place: NodePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supernode, "SILENCE", 2.0)
    with Supervised(lambda: supernode.worker(place), 60, lambda text: None) as model:
        pulse = supernode._Pulse(model, place)
        limit = time.monotonic() + 60

        def answered_since(moment: float) -> bool:
            model.tend()
            pulse.take()
            return pulse._answered > moment

        while not answered_since(0.0) and time.monotonic() < limit:
            time.sleep(0.1)
        monkeypatch.setattr(supernode, "START", 0.0)
        hung, stopped = pid(model), time.monotonic()
        os.kill(hung, signal.SIGSTOP)
        while pid(model) == hung and time.monotonic() < limit:
            answered_since(stopped)
        monkeypatch.setattr(supernode, "START", 100.0)
        while not answered_since(stopped) and time.monotonic() < limit:
            time.sleep(0.1)
        assert pulse._answered > stopped
        assert pid(model) != hung


def test_a_state_folder_serves_one_node_at_a_time(place: NodePlace, tmp_path: Path) -> None:
    from filelock import FileLock

    place.state.mkdir()
    with (
        FileLock(place.state / "lock"),
        pytest.raises(RunError, match="in use by another node; give this one a --state-dir"),
    ):
        engines.join("127.0.0.1:9", place, None, lambda event: None)
