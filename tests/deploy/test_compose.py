"""docker-compose.yml and compose.node.yml: what an engine would be told."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from . import image
from .composefile import COMPOSE, NODE, ROOT, Service, defaults, load, services, settings
from .parsing import parse

ENVIRONMENT = settings(ROOT / ".env.example")
CONTENT = {path: load(path, ENVIRONMENT) for path in (COMPOSE, NODE)}
SERVICES = services(CONTENT[COMPOSE])
EVERY = [*SERVICES.values(), *services(CONTENT[NODE]).values()]
NODES = ("clinic", "harbour", "garden")

every_service = pytest.mark.parametrize("service", EVERY, ids=lambda service: service.name)


def test_both_files_are_as_the_compose_specification_has_them(tmp_path: Path) -> None:
    files = [COMPOSE, NODE]
    for path, content in CONTENT.items():
        files.append(tmp_path / path.name)
        files[-1].write_text(yaml.safe_dump(content))
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, *map(str, files)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@every_service
def test_every_command_is_one_that_the_program_takes(service: Service) -> None:
    if service.entrypoint is None:
        parse(service.command)
    else:  # a script; test_keys.py runs it
        [script] = service.command
        assert subprocess.run(["/bin/sh", "-n"], input=script.encode(), check=False).returncode == 0


def test_every_variable_is_explained_with_its_default() -> None:
    found: dict[str, set[str]] = {}
    for path in CONTENT:
        for name, values in defaults(path).items():
            found.setdefault(name, set()).update(values)
    needed = {name for name, values in found.items() if values == {""}} - {"PIP_EXTRA_INDEX_URL"}
    assert needed == {"COORDINATOR", "NODE", "NODE_KEYS", "NODE_DATA"}
    assert {name: values for name, values in found.items() if name not in needed} == {
        name: {value} for name, value in ENVIRONMENT.items() if name not in needed
    }
    assert needed <= ENVIRONMENT.keys()
    text = (ROOT / ".env.example").read_text()
    assert all(f"\n# {name}=" in text for name in needed), "they have no default"


def test_a_node_alone_says_what_it_lacks() -> None:
    with pytest.raises(ValueError, match="COORDINATOR: host:port"):
        load(NODE, {})


@every_service
def test_nobody_is_root_or_can_become_it_or_write_to_the_image(service: Service) -> None:
    content = service.content
    assert content["read_only"]
    assert content["tmpfs"] == ["/tmp"]
    assert content["cap_drop"] == ["ALL"]
    assert content["security_opt"] == ["no-new-privileges:true"]
    assert content["init"]
    assert not {"user", "privileged", "cap_add", "devices", "pid", "ipc"} & content.keys()
    limits = content["deploy"]["resources"]["limits"]
    assert limits.keys() == {"cpus", "memory", "pids"}


@every_service
def test_whoever_ends_well_stays_ended_and_nobody_is_started_without_end(service: Service) -> None:
    policy = {"keys": "no", "reader": "no", "hub": "unless-stopped"}
    assert service.content["restart"] == policy.get(service.name, "on-failure:10")


@every_service
def test_health_checks_are_programs_and_the_public_ones_ask_by_tls(service: Service) -> None:
    check = service.healthcheck
    if service.name in ("keys", "reader"):
        assert check is None
        return
    assert check is not None
    python, option, text = check
    assert (python, option) == ("python", "-c")
    compile(text, service.name, "exec")
    if service.name in ("coordinator", "hub"):
        assert 'cafile="/pki/coordinator/ca.crt"' in text
        assert "localhost" in text


def test_each_secret_is_seen_by_those_alone_whom_it_concerns() -> None:
    seen: dict[str, set[str]] = {}
    for service in SERVICES.values():
        for mount in service.mounts:
            if mount.target.startswith("/pki"):
                seen.setdefault(mount.source, set()).add(service.name)
                assert mount.read_only == (service.name != "keys")
    assert seen == {
        "ca": {"keys"},
        "coordinator-keys": {"keys", "coordinator", "hub"},
        "hub-tokens": {"keys", "hub"},
        "reader-keys": {"keys", "reader"},
        **{f"{node}-keys": {"keys", node} for node in NODES},
    }


def test_data_and_state_of_a_node_are_its_own() -> None:
    seen: dict[str, list[str]] = {}
    for service in SERVICES.values():
        for mount in service.mounts:
            seen.setdefault(mount.source, []).append(service.name)
            if not mount.is_volume:
                assert mount.read_only
    for node in NODES:
        assert seen[f"{node}-state"] == seen[f"./recipes/data/demo/{node}.jsonl"] == [node]


def test_only_the_gate_and_the_hub_can_be_called() -> None:
    published = {name: one.content.get("ports") for name, one in SERVICES.items()}
    assert {name: ports for name, ports in published.items() if ports} == {
        "coordinator": ["127.0.0.1:8000:8000"],
        "hub": ["127.0.0.1:8100:8100"],
    }
    networks = CONTENT[COMPOSE]["networks"]
    assert networks["federation"] == {"internal": True}
    for name in (*NODES, "reader"):
        assert SERVICES[name].content["networks"] == ["federation"]
    assert SERVICES["keys"].content["network_mode"] == "none"
    assert "network_mode" not in SERVICES["coordinator"].content


def test_everybody_waits_for_what_it_needs() -> None:
    wait = {name: one.content.get("depends_on", {}) for name, one in SERVICES.items()}
    made = {"condition": "service_completed_successfully"}
    healthy = {"condition": "service_healthy"}
    assert wait == {
        "keys": {},
        "reader": {},
        "coordinator": {"keys": made},
        "hub": {"keys": made},
        **{node: {"coordinator": healthy} for node in NODES},
    }


@every_service
def test_what_is_mounted_exists_and_can_be_written_by_the_image_s_user(service: Service) -> None:
    volumes = CONTENT[NODE if service.name == "node" else COMPOSE]["volumes"]
    for mount in service.mounts:
        if mount.is_volume:
            assert mount.source in volumes
            assert mount.target in {*image.folders(), "/var/tmp"}
        elif service.name != "node":
            assert (ROOT / mount.source).is_file()


def test_every_volume_is_used() -> None:
    for path, content in CONTENT.items():
        mounts = [mount for one in services(content).values() for mount in one.mounts]
        assert {mount.source for mount in mounts if mount.is_volume} == set(content["volumes"]), (
            path
        )
