"""F1-F4 on real processes: whatever is killed, the run ends with the undisturbed run's head."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedlora.adapters import QuorumError
from fedlora.cli import engines

from .conftest import RecipeOf
from .federation import Federation, descendants, running

SITES = ("anchor", "birch")


@pytest.fixture
def federation(recipe_of: RecipeOf, tmp_path: Path) -> Iterator[Federation]:
    settings = {"rounds": 8, "min_nodes": 2, "retries": 20, "wait": 200.0}
    with running(Federation(tmp_path, recipe_of(SITES, federation=settings))) as one:
        yield one


def wait_for(what: Callable[[], bool], seconds: float = 240) -> None:
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit, "it didn't come"
        time.sleep(0.1)


def committed(federation: Federation, round: int) -> Callable[[], bool]:
    return (federation.run_dir / "ledger" / f"{round:04d}").exists


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_F1_F2_coordinator_superlink_worker_app_and_node_are_killed_in_turn(
    federation: Federation, tmp_path: Path
) -> None:
    whole = engines.simulate(federation.recipe, tmp_path / "whole", "inprocess", lambda event: None)
    coordinator = federation.coordinate()
    nodes = {site: federation.join(site) for site in SITES}
    wait_for(committed(federation, 1))
    coordinator.kill()
    assert coordinator.wait() == -signal.SIGKILL
    coordinator = federation.coordinate()
    wait_for(committed(federation, 2))
    for superlink in descendants(coordinator, "flower-superlink"):
        superlink.kill()
    wait_for(committed(federation, 3))
    for worker in descendants(nodes["anchor"], "fedlora.client.worker"):
        worker.kill()
    wait_for(committed(federation, 4))
    nodes["birch"].kill()
    nodes["birch"].wait()
    nodes["birch"] = federation.join("birch")
    wait_for(committed(federation, 5))
    for app in descendants(coordinator, "flwr-serverapp"):
        app.kill()
    wait_for(committed(federation, 6))
    for supernode in descendants(nodes["anchor"], "fedlora.client.supernode"):
        supernode.kill()
    said = coordinator.communicate(timeout=400)[0]
    assert coordinator.returncode == 0, said
    for node in nodes.values():
        assert node.wait(timeout=60) == 0
    assert federation.run.heads.record().hash == whole.heads.record().hash
    for round in range(1, 9):
        how = federation.run.heads.record(round).proceedings
        assert set(how.admitted) == set(SITES)
        assert how.worst_receipt <= 1e-6
        assert len({one.folded for one in how.admitted.values()}) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_F3_F4_a_frozen_node_is_named_and_the_run_ends_without_it(
    recipe_of: RecipeOf, tmp_path: Path
) -> None:
    settings = {"rounds": 50, "min_nodes": 2, "deadline": 20.0, "retries": 1, "wait": 60.0}
    with running(Federation(tmp_path, recipe_of(SITES, federation=settings))) as federation:
        coordinator = federation.coordinate()
        nodes = {site: federation.join(site) for site in SITES}
        wait_for(committed(federation, 1))
        for process in (nodes["birch"], *descendants(nodes["birch"], "")):
            os.kill(process.pid, signal.SIGSTOP)
        said = coordinator.communicate(timeout=300)[0]
        for process in (nodes["birch"], *descendants(nodes["birch"], "")):
            os.kill(process.pid, signal.SIGCONT)
        assert coordinator.returncode == QuorumError.exit_code, said
        assert "birch" in said
        assert "Traceback" not in said
