"""Nodes that `fedlora join` keeps going while processes die around them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from fedlora.cli import engines
from fedlora.cli.processes import free_port
from fedlora.cli.superlink import lead, superlink
from fedlora.recipes.schema import Recipe
from fedlora.server.events import Event, NodeRefused, RoundDone, RoundStarted
from fedlora.server.rundir import RunDirectory

from .conftest import RecipeOf

FEDLORA = str(Path(sys.executable).parent / "fedlora")
SITES = ("anchor", "birch")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Joined:
    """`fedlora join` of every node of a recipe."""

    def __init__(self, recipe: Recipe, folder: Path, port: int) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for section in recipe.node:
            command = [FEDLORA, "join", f"127.0.0.1:{port}", "--name", section.name, "--json"]
            command += ["--data", section.data, "--model", recipe.model.source, "--threads", "1"]
            command += ["--state-dir", str(folder / section.name)]
            with (folder / f"{section.name}.out").open("w") as out:
                self.processes[section.name] = subprocess.Popen(
                    command, stdout=out, stderr=subprocess.STDOUT
                )

    def kill(self, name: str, program: str) -> None:
        """Kill the node's process that runs `program`."""
        for child in psutil.Process(self.processes[name].pid).children():
            if program in " ".join(child.cmdline()):
                os.kill(child.pid, signal.SIGKILL)
                return
        raise AssertionError(f"{name} has no {program}")

    def end(self) -> dict[str, int]:
        """Exit codes, once they have ended by themselves."""
        return {name: process.wait(timeout=120) for name, process in self.processes.items()}

    def said(self) -> str:
        return "".join((self.folder / f"{name}.out").read_text() for name in self.processes)


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[[Recipe, int], Joined]]:
    made: list[Joined] = []

    def start(recipe: Recipe, port: int) -> Joined:
        made.append(Joined(recipe, tmp_path, port))
        return made[-1]

    yield start
    for one in made:
        for process in one.processes.values():
            process.kill()
            process.wait()


def head(run: RunDirectory) -> str:
    return run.heads.record().hash


def test_F2_nodes_lose_every_process_they_have_and_the_run_ends_the_same(
    recipe_of: RecipeOf, tmp_path: Path, join: Callable[[Recipe, int], Joined]
) -> None:
    """In round 2 a worker dies, in round 3 a SuperNode, in round 4 a whole `fedlora join`."""
    recipe = recipe_of(SITES, train={"steps": 20}, federation={"rounds": 4, "retries": 5})
    port = free_port()
    run = RunDirectory.create(tmp_path / "run", recipe)
    events: list[Event] = []
    done: set[int] = set()
    with superlink(run, "127.0.0.1", port, simulation=False) as link:
        nodes = join(recipe, port)

        def hear(event: Event) -> None:
            events.append(event)
            if isinstance(event, RoundStarted) and event.round not in done:
                done.add(event.round)
                if event.round == 2:
                    time.sleep(1.5)
                    nodes.kill("birch", "fedlora.client.worker")
                if event.round == 3:
                    nodes.kill("anchor", "fedlora.client.supernode")
                if event.round == 4:
                    nodes.processes["birch"].kill()
                    time.sleep(2.0)  # its children are gone, or the newcomer would find it locked
                    nodes.processes |= join(
                        recipe.model_copy(update={"node": recipe.node[1:]}), port
                    ).processes

        lead(run, link, hear)
    assert nodes.end() == {"anchor": 0, "birch": 0}, nodes.said()
    assert [event.round for event in events if isinstance(event, RoundDone)] == [1, 2, 3, 4]
    assert [event for event in events if isinstance(event, NodeRefused)]
    assert "Traceback" not in nodes.said()
    cold = engines.simulate(recipe, tmp_path / "cold", "inprocess", lambda event: None)
    assert head(run) == head(cold)


def test_nodes_find_a_superlink_that_returns_without_its_memory(
    recipe_of: RecipeOf, tmp_path: Path, join: Callable[[Recipe, int], Joined]
) -> None:
    """It doesn't know them any more, whereupon Flower's SuperNodes end."""
    recipe, port = recipe_of(SITES, federation={"rounds": 2}), free_port()
    first = RunDirectory.create(tmp_path / "first", recipe)
    with ExitStack() as stack:
        stack.enter_context(superlink(first, "127.0.0.1", port, simulation=False))
        nodes = join(recipe, port)
        limit = time.monotonic() + 120
        logs = [tmp_path / site / "node.log" for site in SITES]
        while time.monotonic() < limit and not all(
            log.exists() and "SuperNode ID" in log.read_text() for log in logs
        ):
            time.sleep(0.2)
    second = RunDirectory.create(tmp_path / "second", recipe)
    with superlink(second, "127.0.0.1", port, simulation=False) as link:
        lead(second, link, lambda event: None)
    assert nodes.end() == {"anchor": 0, "birch": 0}, nodes.said()
    cold = engines.simulate(recipe, tmp_path / "cold", "inprocess", lambda event: None)
    assert head(second) == head(cold)
