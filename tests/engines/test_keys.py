"""A federation by TLS with registered keys, as users start it."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedlora.adapters import IdentityError
from fedlora.server.rundir import RunDirectory

from .conftest import RecipeOf
from .federation import Federation, running


@pytest.fixture
def federation(recipe_of: RecipeOf, tmp_path: Path) -> Iterator[Federation]:
    sites = ("anchor", "birch")
    one = Federation(tmp_path, recipe_of(sites, federation={"rounds": 2, "min_nodes": 2}))
    with running(one):
        yield one


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_S16_registered_nodes_finish_a_run_and_no_secret_is_left_behind(
    federation: Federation,
) -> None:
    coordinator = federation.coordinate()
    nodes = [federation.join(node.name) for node in federation.recipe.node]
    said = [process.communicate(timeout=500)[0] for process in (*nodes, coordinator)]
    assert [process.returncode for process in (*nodes, coordinator)] == [0, 0, 0], said
    assert RunDirectory.open(federation.run_dir).heads.rounds() == [0, 1, 2]
    assert "Traceback" not in "".join(said)
    secrets = list(_secrets(federation.pki))
    assert len(secrets) > 10
    kept = [path for path in federation.folder.rglob("*") if path.is_file()]
    kept = [path for path in kept if not path.is_relative_to(federation.pki)]
    assert {"superlink.log", "node.log", "recipe.toml"} <= {path.name for path in kept}
    for content in (*(text.encode() for text in said), *(path.read_bytes() for path in kept)):
        assert not [secret for secret in secrets if secret in content]


def _secrets(pki: Path) -> Iterator[bytes]:
    """Each line of each private key."""
    yield b"PRIVATE KEY"
    for path in pki.rglob("*.key"):
        yield from path.read_bytes().splitlines()[1:-1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_S8_a_node_that_trusts_another_coordinators_key_leaves(federation: Federation) -> None:
    other = federation.folder / "other"
    federation.keys("ca", "--out", other / "ca")
    federation.keys("server", "--ca", other / "ca", "--host", "x.example", "--out", other / "own")
    shutil.copy(other / "own" / "coordinator.pub", federation.pki / "anchor")
    federation.coordinate()
    node = federation.join("anchor")
    said = node.communicate(timeout=240)[0]
    assert node.returncode == IdentityError.exit_code, said
    assert "another party made it" in said


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_S10_a_node_whose_key_is_removed_is_turned_away(federation: Federation) -> None:
    federation.coordinate()
    node = federation.join("anchor")
    log = federation.run_dir / "superlink.log"
    while not log.exists() or "Activated node_id" not in log.read_text():
        assert node.poll() is None
        time.sleep(0.2)
    (federation.pki / "coordinator" / "nodes" / "anchor.pub").unlink()
    said = node.communicate(timeout=120)[0]
    assert node.returncode == IdentityError.exit_code, said
    assert "does not know the key" in said
