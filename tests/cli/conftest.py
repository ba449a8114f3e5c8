"""How the tests of the command line call it: in this process, or as the installed program."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedlora.cli.main import app

Call = Callable[..., Result]
Program = Callable[..., "subprocess.CompletedProcess[str]"]

RECIPE = """\
name = "ferry"

[model]
source = "smollm2-135m"

[[node]]
name = "north"
data = "north.jsonl"
"""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command in this process, with a terminal wide enough not to break lines."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    return lambda *args: CliRunner().invoke(app, list(map(str, args)))


@pytest.fixture(scope="session")
def program() -> Program:
    """Run the installed `fedlora`, as a user does."""
    script = Path(sys.executable).with_name("fedlora")

    def run(*args: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [script, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        )

    return run


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A valid recipe with one node, whose data file is there."""
    path = tmp_path / "ferry.toml"
    path.write_text(RECIPE)
    (tmp_path / "north.jsonl").write_text('{"instruction": "Who?", "response": "I."}\n')
    return path
