"""The services of docker-compose.yml, run by their own commands, on a tiny model."""

import hashlib
import shutil
import signal
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from fedlora.adapters import RunError
from fedlora.protos.keys import AuthorityKeys, CoordinatorKeys, NodeKeys
from fedlora.server.rundir import RunDirectory

from .composefile import COMPOSE, ROOT
from .stage import Stage, wait_for

NODES = ("clinic", "harbour", "garden")
TINY = "tiny/llama"  # a name: nodes take no path from a coordinator


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """The demo on the tiny model."""
    recipe = tomllib.loads((ROOT / "recipes" / "demo.toml").read_text())
    recipe["model"]["source"] = TINY
    recipe["lora"]["rank"], recipe["train"]["steps"], recipe["federation"]["rounds"] = 4, 2, 2
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(recipe))
    one = Stage(tmp_path / "stage", COMPOSE, {"RECIPE": str(tmp_path / "recipe.toml")})
    yield one
    one.stop()


def put_into_cache(cache: Path, model: Path) -> None:
    """As Hugging Face's tools leave a model that they have downloaded."""
    folder, revision = cache / "huggingface" / "hub" / "models--tiny--llama", "0" * 40
    shutil.copytree(model, folder / "snapshots" / revision)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_keys_are_made_once_and_each_party_gets_its_own_alone(stage: Stage) -> None:
    assert stage.run("keys") == 0, stage.said("keys")
    made = digests(stage.volumes)
    handed_out = {"ca.crt", "coordinator.pub"}
    found = {volume.name: set(digests(volume)) for volume in stage.volumes.iterdir()}
    assert found == {
        "ca": {"ca.key", "ca.crt"},
        "coordinator-keys": {"server.key", "server.crt", "signing.key", *handed_out}
        | {f"nodes/{node}.pub" for node in NODES},
        **{f"{node}-keys": {"node.key", f"{node}.pub", *handed_out} for node in NODES},
        "reader-keys": {"token", *handed_out},
        "hub-tokens": {"tokens"},
    }
    AuthorityKeys.open(stage.volumes / "ca")
    coordinator = CoordinatorKeys.open(stage.volumes / "coordinator-keys")
    assert {"coordinator", "hub", "localhost"} <= set(coordinator.hosts)
    for node in NODES:
        own = NodeKeys.open(stage.volumes / f"{node}-keys").signing.verifying
        assert own == coordinator.nodes()[node]
    for secret in ("reader-keys/token", "hub-tokens/tokens"):
        assert stat.S_IMODE((stage.volumes / secret).stat().st_mode) == 0o600
    assert stage.run("keys") == 0, stage.said("keys")
    assert digests(stage.volumes) == made

    for gone in ("nodes/garden.pub", "server.key", "server.crt"):
        (coordinator.folder / gone).unlink()
    before = digests(stage.volumes)
    assert stage.run("keys") == 0, stage.said("keys")
    new = digests(stage.volumes).keys() - before.keys()
    assert new == {"coordinator-keys/server.key", "coordinator-keys/server.crt"}, (
        "a new certificate is made, and a node that was shut out stays out"
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_ends_though_its_coordinator_is_killed_and_the_hub_gives_out_its_model(
    stage: Stage, tiny_causal: Path
) -> None:
    put_into_cache(stage.volumes / "cache", tiny_causal)
    assert stage.run("keys") == 0, stage.said("keys")
    secrets = {name: one for name, one in digests(stage.volumes).items() if "cache" not in name}
    assert stage.run("hub") == RunError.exit_code, "there is no run yet; its policy starts it again"
    assert not stage.is_healthy("coordinator")
    coordinator = stage.start("coordinator")
    wait_for(lambda: stage.is_healthy("coordinator"))
    nodes = {node: stage.start(node) for node in NODES}
    wait_for(lambda: stage.is_healthy("clinic"))
    wait_for((stage.volumes / "runs" / "demo" / "ledger" / "0001").exists)
    coordinator.send_signal(signal.SIGKILL)
    assert coordinator.wait() == -signal.SIGKILL
    coordinator = stage.start("coordinator")
    assert coordinator.wait(timeout=400) == 0, stage.said("coordinator")
    ended = {node: process.wait(timeout=60) for node, process in nodes.items()}
    assert ended == dict.fromkeys(NODES, 0), stage.said("clinic")
    assert stage.run("coordinator", "ledger", "verify", "/runs/demo") == 0
    head = RunDirectory.open(stage.volumes / "runs" / "demo").heads.record()
    assert head.round == 2
    assert f"3 records hold; the last head is {head.hash}" in stage.said("coordinator")

    stage.start("hub")
    wait_for(lambda: stage.is_healthy("hub"))
    assert stage.run("reader") == 0, stage.said("reader")
    pulled = RunDirectory.open(stage.volumes / "models" / "demo").heads.record()
    assert pulled.digest == head.digest
    assert stage.run("reader", "generate", "/models/demo", "Who?") == 0, stage.said("reader")

    assert {name: digests(stage.volumes).get(name) for name in secrets} == secrets
    assert not list(stage.nowhere.iterdir())
    assert not any("Traceback" in stage.said(name) for name in (*NODES, "reader"))
