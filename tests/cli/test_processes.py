"""Children end with their parent, however that ends, and are started again when they end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fedlora.adapters import EngineError
from fedlora.cli import supervision
from fedlora.cli.processes import Child
from fedlora.cli.supervision import Supervised

PYTHON = Path(sys.executable).name
SLEEP = [PYTHON, "-c", "import time; time.sleep(600)"]
# A child with a child of its own; says both numbers.
FAMILY = """
import subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(other.pid, flush=True)
time.sleep(600)
"""
PARENT = """
import sys, time
from pathlib import Path
from fedlora.cli.processes import Child
child = Child([Path(sys.executable).name, "-c", sys.argv[1]], {}, Path(sys.argv[2]))
print(child._process.pid, flush=True)
time.sleep(600)
"""


def until(seconds: float, condition: Callable[[], bool]) -> bool:
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.05)
    return condition()


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_parent_killed_outright_takes_its_children_and_theirs_along(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, FAMILY, str(log)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert until(10, lambda: log.exists() and log.read_text().endswith("\n"))
    grandchild = int(log.read_text())
    assert lives(child)
    assert lives(grandchild)
    parent.kill()
    parent.communicate()
    assert until(5, lambda: not lives(child) and not lives(grandchild))


def test_a_stopped_child_leaves_nothing(tmp_path: Path) -> None:
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    with Child([PYTHON, "-c", FAMILY], {}, tmp_path / "log"):
        assert until(10, lambda: (tmp_path / "log").read_text() != "")
    left = {one.pid for one in psutil.Process().children(recursive=True)} - before
    assert until(5, lambda: not any(map(lives, left)))
    grandchild = int((tmp_path / "log").read_text())
    assert until(5, lambda: not lives(grandchild))


def test_a_child_that_ends_is_started_again_and_the_listener_hears_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "PAUSES", (0.2,))
    said: list[str] = []
    log = tmp_path / "log"
    with Supervised(lambda: Child(SLEEP, {}, log, "the sleeper"), 60, said.append) as sleeper:
        first = sleeper.child
        os.kill(first._process.pid, signal.SIGKILL)

        def another() -> bool:
            sleeper.tend()
            return sleeper.child is not first

        assert until(10, another)
        assert not sleeper.child.ended()
        assert said == ["the sleeper ended with exit code -9; it is started again in 0.2 s"]


def test_a_child_that_hangs_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "PAUSES", (0.1,))
    with Supervised(lambda: Child(SLEEP, {}, tmp_path / "log"), 60, lambda text: None) as sleeper:
        hung = sleeper.child._process.pid
        os.kill(hung, signal.SIGSTOP)
        sleeper.kill("it hangs")

        def another() -> bool:
            sleeper.tend()
            return sleeper.child._process.pid != hung

        assert until(10, another)
        assert not lives(hung)


def test_patience_with_a_child_that_never_lasts_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "PAUSES", (0.1,))
    command = [PYTHON, "-c", "raise SystemExit('no such coordinator')"]
    with Supervised(lambda: Child(command, {}, tmp_path / "log"), 1.0, lambda text: None) as child:
        with pytest.raises(EngineError, match="no such coordinator"):
            assert until(20, lambda: bool(child.tend()))
        assert (tmp_path / "log").read_text().count("no such coordinator") > 1


def test_sigterm_ends_a_command_as_ctrl_c_does(tmp_path: Path) -> None:
    """Its children are stopped, and nothing is printed but what the user must know."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"instruction": "a", "response": "b"}\n')
    command = [str(Path(sys.executable).parent / "fedlora"), "join", "127.0.0.1:9"]
    command += ["--name", "site", "--data", str(data), "--state-dir", str(tmp_path / "state")]
    joined = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    children: list[psutil.Process] = []

    def started() -> bool:
        children[:] = psutil.Process(joined.pid).children(recursive=True)
        return len(children) >= 4  # a worker, a SuperNode, and their guards

    assert until(30, started)
    joined.terminate()
    said, _ = joined.communicate(timeout=30)
    assert joined.returncode == 143
    assert "Traceback" not in said
    assert until(5, lambda: not any(lives(child.pid) for child in children))
