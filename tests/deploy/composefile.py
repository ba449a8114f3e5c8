"""A Compose file as an engine takes it: variables filled in, mounts told apart."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE, NODE = ROOT / "docker-compose.yml", ROOT / "compose.node.yml"

VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>\w+)(?P<how>:[-?])(?P<text>[^}]*)\}|)")


@dataclass(frozen=True)
class Mount:
    """Something of the host, or a volume, inside a container."""

    source: str
    target: str
    read_only: bool

    @property
    def is_volume(self) -> bool:
        return not self.source.startswith(("/", "."))


@dataclass(frozen=True)
class Service:
    """What an engine starts."""

    name: str
    content: Mapping[str, Any]

    @property
    def command(self) -> list[str]:
        return [str(one) for one in self.content["command"]]

    @property
    def entrypoint(self) -> list[str] | None:
        return self.content.get("entrypoint")

    @property
    def environment(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.content.get("environment", {}).items()}

    @property
    def mounts(self) -> list[Mount]:
        return [_mount(one) for one in self.content.get("volumes", [])]

    @property
    def healthcheck(self) -> list[str] | None:
        """The program that checks, and its arguments."""
        check = self.content.get("healthcheck")
        return check["test"][1:] if check else None


def load(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """The file with its variables filled in, of which those in `variables` are set."""
    content = _filled(yaml.safe_load(path.read_text()), variables)
    assert isinstance(content, dict)
    return content


def services(content: Mapping[str, Any]) -> dict[str, Service]:
    return {name: Service(name, one) for name, one in content["services"].items()}


def defaults(path: Path) -> dict[str, set[str]]:
    """The default of each variable in the file, wherever it stands; "" where it must be set."""
    found: dict[str, set[str]] = {}
    for match in VARIABLE.finditer(path.read_text()):
        if name := match["name"]:
            found.setdefault(name, set()).add("" if match["how"] == ":?" else match["text"])
    return found


def settings(path: Path) -> dict[str, str]:
    """What an .env file sets, or shows in a comment."""
    lines = re.findall(r"^(?:# )?([A-Z_]+)=(.*)$", path.read_text(), re.MULTILINE)
    assert len(dict(lines)) == len(lines), "said twice"
    return dict(lines)


def _filled(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(one, variables) for name, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, variables) for one in value]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        if match["name"] is None:
            raise ValueError(f"a lone $ in {value!r}")
        found = variables.get(match["name"], "")
        if not found and match["how"] == ":?":
            raise ValueError(f"{match['name']}: {match['text']}")
        return found or match["text"]

    return VARIABLE.sub(fill, value)


def _mount(given: str | dict[str, Any]) -> Mount:
    if isinstance(given, str):
        source, target, *mode = given.split(":")
        return Mount(source, target, mode == ["ro"])
    return Mount(given["source"], given["target"], given.get("read_only", False))
