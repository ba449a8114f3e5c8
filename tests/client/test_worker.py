"""A warm node with a real worker: the same bytes as a cold one, and deaths on either side."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict

from fedlora.cli import engines, supernode, supervision
from fedlora.cli.supervision import Supervised
from fedlora.client.app import NodeApp
from fedlora.client.channel import look
from fedlora.client.place import NodePlace
from fedlora.client.private_socket import socket_path
from fedlora.client.relay import relay
from fedlora.recipes.loading import dump
from fedlora.recipes.schema import Recipe
from fedlora.server.coordinator import coordinate
from fedlora.server.events import Event, Listener, NodeRefused
from fedlora.server.rundir import RunDirectory
from fedlora.strategies import InProcessGrid

from ..engines.conftest import write_facts

ROOT = Path(__file__).parents[2]
LEAD = """
import sys
from pathlib import Path
from fedlora.recipes.loading import load_recipe
from tests.client.test_worker import lead
lead(load_recipe(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]), print)
"""


def lead(recipe: Recipe, folder: Path, socket: Path, listener: Listener) -> str:
    """Coordinate one node that a worker serves; returns the last head."""

    def app(message: Message, context: Context) -> Message:
        config = {"worker": str(socket)}
        return NodeApp()(message, Context(1, context.node_id, config, RecordDict(), {}))

    run = RunDirectory.create(folder, recipe)
    grid = InProcessGrid(app, 1)  # type: ignore[arg-type]  # called, and no more
    coordinate(grid, run, listener, wait=0.0, poll=0.0)
    return run.heads.record().hash


@dataclass
class Refusals:
    """A listener that notes why and when the node was refused, and does something about it."""

    act: Callable[[], object] = lambda: None
    reasons: list[str] = field(default_factory=list)
    when: float = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, NodeRefused):
            self.reasons.append(event.reason)
            self.when = time.monotonic()
            self.act()


@dataclass
class Warm:
    """A node whose worker runs, and is started again when it ends."""

    folder: Path
    model: Path
    kept: Supervised

    @property
    def socket(self) -> Path:
        return socket_path(self.folder / "anchor")

    def recipe(self, steps: int, rounds: int) -> Recipe:
        node = {"name": "anchor", "data": str(self.folder / "anchor.jsonl")}
        return Recipe.model_validate(
            {
                "name": "tiny",
                "model": {"source": str(self.model)},
                "lora": {"rank": 4},
                "train": {"steps": steps, "batch_size": 2, "learning_rate": 1e-2, "threads": 1},
                "federation": {"rounds": rounds, "min_nodes": 1},
                "node": [node],
            }
        )

    def log(self) -> str:
        """What the worker wrote."""
        return (self.folder / "anchor" / "worker.log").read_text()

    def signal(self, sign: signal.Signals) -> float:
        """Signal the worker; returns when."""
        os.kill(self.kept.child._process.pid, sign)
        return time.monotonic()

    def in_training(self, act: Callable[[], object]) -> threading.Thread:
        """Act once the worker has made a few steps of the next round that it trains."""
        before = look(self.socket, 60.0)

        def watch() -> None:
            limit = time.monotonic() + 100
            while time.monotonic() < limit:
                now = look(self.socket, 1.0)
                if now is not None and now.step.step >= 3 and now != before:
                    act()
                    return
                time.sleep(0.02)

        thread = threading.Thread(target=watch)
        thread.start()
        return thread


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, tiny_causal: Path) -> Iterator[Warm]:
    folder = tmp_path_factory.mktemp("warm")
    data = write_facts(folder / "anchor.jsonl", "anchor", 8)
    place = NodePlace("anchor", data, None, folder / "anchor", 1, str(tiny_causal))
    over = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervision, "PAUSES", (0.1,))
        with Supervised(lambda: supernode.worker(place), 60, lambda text: None) as kept:

            def tend() -> None:
                while not over.wait(0.1):
                    kept.tend()

            thread = threading.Thread(target=tend)
            thread.start()
            try:
                yield Warm(folder, tiny_causal, kept)
            finally:
                over.set()
                thread.join()


def cold(recipe: Recipe, folder: Path) -> str:
    """The last head of the same run in this process."""
    return engines.simulate(recipe, folder, "inprocess", lambda event: None).heads.record().hash


def test_F2_a_worker_killed_in_training_is_reported_at_once_and_the_run_ends_the_same(
    warm: Warm, tmp_path: Path
) -> None:
    recipe = warm.recipe(steps=20, rounds=2)
    killed: list[float] = []
    watch = warm.in_training(lambda: killed.append(warm.signal(signal.SIGKILL)))
    refusals = Refusals()
    head = lead(recipe, tmp_path / "warm", warm.socket, refusals)
    watch.join()
    (reason,) = refusals.reasons
    assert reason.startswith("the node's worker ended while it worked on this message")
    assert refusals.when - killed[0] < 3.0
    assert head == cold(recipe, tmp_path / "cold")


@pytest.mark.parametrize(
    "sign", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_client_app_that_dies_or_is_stopped_cancels_the_work_and_leaves_no_trace(
    warm: Warm, tmp_path: Path, sign: signal.Signals
) -> None:
    (tmp_path / "long.toml").write_text(dump(warm.recipe(steps=100_000, rounds=1)))
    arguments = map(str, (tmp_path / "long.toml", tmp_path / "long", warm.socket))
    worker, before = warm.kept.child, warm.log().count("cancelled")
    with subprocess.Popen([sys.executable, "-c", LEAD, *arguments], cwd=ROOT) as caller:
        warm.in_training(lambda: caller.send_signal(sign)).join()
        recipe = warm.recipe(steps=3, rounds=2)
        refusals = Refusals()
        head = lead(recipe, tmp_path / "warm", warm.socket, refusals)
        caller.kill()
    assert refusals.reasons == []
    assert warm.kept.child is worker
    assert warm.log().count("cancelled") == before + 1
    assert head == cold(recipe, tmp_path / "cold")


def test_a_worker_that_is_silent_is_reported_and_serves_again_when_it_wakes(
    warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedlora.client.app.relay", partial(relay, silence=2.0))
    stopped: list[float] = []
    watch = warm.in_training(lambda: stopped.append(warm.signal(signal.SIGSTOP)))
    refusals = Refusals(lambda: warm.signal(signal.SIGCONT))
    lead(warm.recipe(steps=50, rounds=1), tmp_path / "run", warm.socket, refusals)
    watch.join()
    (reason,) = refusals.reasons
    assert "was silent for 2 s" in reason
    assert 1.0 < refusals.when - stopped[0] < 5.0


def test_an_error_that_nobody_foresaw_is_reported_and_begins_a_new_process(
    warm: Warm, tmp_path: Path
) -> None:
    folder = warm.folder / "anchor" / "residuals"
    for name in folder.iterdir():
        name.unlink()
    folder.rmdir()
    folder.write_text("a file where a folder has to be")
    refusals = Refusals(folder.unlink)
    before = warm.kept.child
    lead(warm.recipe(steps=2, rounds=1), tmp_path / "run", warm.socket, refusals)
    (reason,) = refusals.reasons
    assert "FileExistsError" in reason
    assert before.ended().startswith("the worker ended with exit code 1")


def test_two_callers_take_turns(warm: Warm, tmp_path: Path) -> None:
    """The second hears that the worker lives, and is served when the first has its reply."""
    recipe = warm.recipe(steps=20, rounds=1)
    heads: list[str] = []

    def run(name: str) -> None:
        with suppress(Exception):
            heads.append(lead(recipe, tmp_path / name, warm.socket, Refusals()))

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heads == [cold(recipe, tmp_path / "cold")] * 2


def test_the_client_app_of_a_warm_node_loads_no_torch(warm: Warm) -> None:
    code = """
import sys
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from fedlora.client.app import app
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
context = Context(1, 1, {"worker": sys.argv[1]}, RecordDict(), {})
reply = app(Message(RecordDict(), 1, "query"), context)
print(reply.error.reason)
heavy = {"torch", "transformers", "peft", "fedlora.strategies"} & sys.modules.keys()
sys.exit(f"loaded: {heavy}" if heavy else 0)
"""
    command = [sys.executable, "-c", code, str(warm.socket)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "carries no hello" in done.stdout  # so said the worker
    code = "import sys, fedlora.cli.supernode; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)  # nor does `fedlora join`


PEAK = """
from pathlib import Path
def peak():  # kilobytes of this process alone; ru_maxrss counts those of whoever started it
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
"""
ECHO = """
import sys, threading
from flwr.app import Message
from fedlora.client import worker as module
from fedlora.client.place import NodePlace
def echo(*arguments):
    print(peak(), flush=True)
    return lambda message, context: Message(message.content, reply_to=message)
module.make_app = echo
threading.Thread(target=lambda: (sys.stdin.read(), echo(), module.os._exit(0))).start()
module.serve(NodePlace("echo", Path(), None, Path(sys.argv[2])), Path(sys.argv[1]))
"""
CALL = """
import hashlib, os, sys
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from fedlora.client.relay import relay
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
size, before = int(sys.argv[2]), peak()
array = Array("uint8", (size,), "any", os.urandom(size))
digest = hashlib.sha256(array.data).digest()
content = RecordDict({"tensors": ArrayRecord({"big": array})})
del array
reply = relay(Message(content, 1, "train"), Path(sys.argv[1]))
assert hashlib.sha256(reply.content["tensors"]["big"].data).digest() == digest
print(before, peak())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_payload_is_in_memory_once_on_either_side(tmp_path: Path) -> None:
    size = 200 << 20
    socket = socket_path(tmp_path)
    echo = subprocess.Popen(
        [sys.executable, "-c", PEAK + ECHO, str(socket), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    called = subprocess.run(
        [sys.executable, "-c", PEAK + CALL, str(socket), str(size)],
        stdout=subprocess.PIPE,
        check=True,
    )
    said, _ = echo.communicate("")
    for before, after in (map(int, text.split()) for text in (called.stdout.decode(), said)):
        assert 1.0 <= (after - before) * 1024 / size < 1.3
