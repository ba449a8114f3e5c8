"""docker-compose.yml, as far as it can be checked without an engine."""

from pathlib import Path

import pytest
import typer
import yaml

from fedlora.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_command_is_one_that_the_program_parses(name: str) -> None:
    command, *arguments = SERVICES[name]["command"]
    group = typer.main.get_group(app)
    context = group.make_context("fedlora", [command, *arguments])
    parsed = group.commands[command].make_context(command, arguments, parent=context)
    assert not parsed.args


def test_mounts_and_volumes_exist() -> None:
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    for source in (mount.split(":")[0] for mount in mounts):
        assert (
            (ROOT / source).is_file() if source.startswith("./") else source in COMPOSE["volumes"]
        )


def test_nothing_is_published_and_nobody_is_root() -> None:
    assert not [name for name, service in SERVICES.items() if "ports" in service]
    assert COMPOSE["networks"]["federation"] == {"internal": True}
    assert "USER fedlora" in (ROOT / "Dockerfile").read_text()
