"""Watching: each head once, whoever commits it, and a dead hub is noticed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedlora.adapters import EngineError
from fedlora.cli.processes import free_port
from fedlora.client.hub import Hub
from fedlora.server.rundir import RunDirectory

from .conftest import commit, fabricated, hosted, hub_process

COMMIT = """
import sys
from pathlib import Path
from fedlora.server.rundir import RunDirectory
from tests.hub.conftest import commit
commit(RunDirectory.open(Path(sys.argv[1])))
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return fabricated(tmp_path / "run", [400])


def test_the_latest_head_is_told_at_once_and_one_that_another_process_commits_soon(
    run: RunDirectory,
) -> None:
    with hosted(run) as address, Hub(address) as hub:
        news = hub.watch()
        asked = time.monotonic()
        assert next(news).round == 1
        assert time.monotonic() - asked < 2
        root = Path(__file__).resolve().parents[2]
        subprocess.run([sys.executable, "-c", COMMIT, run.path], check=True, cwd=root)
        committed = time.monotonic()
        latest = next(news)
        assert time.monotonic() - committed < 2
    assert (latest.round, latest.head) == (2, run.heads.record(2).hash)


def test_news_say_how_a_round_went(tiny_run: RunDirectory, address: str) -> None:
    with Hub(address) as hub:
        news = next(hub.watch())
    how = tiny_run.heads.record().proceedings
    assert news.nodes == len(how.admitted) == 3
    assert news.receipt == max(how.receipt.values())
    assert dict(news.metrics) == dict(how.metrics)


def test_every_round_after_a_known_one_is_told(tiny_run: RunDirectory, address: str) -> None:
    with Hub(address) as hub:
        news = hub.watch(after=1)
        assert [next(news).round for _ in range(3)] == [2, 3, 4]


def test_a_run_that_has_not_begun_is_waited_for(tmp_path: Path, run: RunDirectory) -> None:
    new = RunDirectory.create(tmp_path / "new", run.recipe)
    with hosted(new) as address, Hub(address) as hub:
        threading.Timer(1.0, lambda: commit(new)).start()
        assert next(hub.watch()).round == 0


def test_rounds_that_are_set_aside_and_made_again_are_told_again(run: RunDirectory) -> None:
    with hosted(run) as address, Hub(address) as hub:
        news = hub.watch()
        assert next(news).round == 1
        run.heads.folder(1).rename(run.heads.directory / "damaged-0001")
        time.sleep(1.5)
        commit(run, torch.ones(3, 1))
        again = next(news)
    assert (again.round, again.head) == (1, run.heads.record(1).hash)


def test_a_hub_that_is_started_again_is_found_and_nothing_is_missed_or_told_twice(
    run: RunDirectory,
) -> None:
    with hub_process(run, free_port()) as process, Hub(process.address, patience=60) as hub:
        news = hub.watch()
        assert next(news).round == 1
        process.kill()
        commit(run)
        commit(run)
        process.restart()
        assert [next(news).round, next(news).round] == [2, 3]


def noticed(hub: Hub, happens: Callable[[], object]) -> float:
    """Seconds until the watcher gives up."""
    news = hub.watch()
    next(news)
    happens()
    began = time.monotonic()
    with pytest.raises(EngineError, match="is gone"):
        next(news)
    return time.monotonic() - began


def test_a_hub_that_died_is_noticed(run: RunDirectory) -> None:
    with hub_process(run, free_port()) as process, Hub(process.address, patience=1) as hub:
        assert noticed(hub, process.kill) < 10


def test_a_hub_that_hangs_is_noticed(run: RunDirectory) -> None:
    """Its machine answers, and the process says nothing."""
    with (
        hub_process(run, free_port()) as process,
        Hub(process.address, silence=2, patience=1) as hub,
    ):
        stopped = process.process.pid
        try:
            assert noticed(hub, lambda: os.kill(stopped, signal.SIGSTOP)) < 15
        finally:
            os.kill(stopped, signal.SIGCONT)


def test_the_command_prints_a_line_a_head_and_pulls_each(
    tiny_run: RunDirectory, tmp_path: Path
) -> None:
    run = RunDirectory.open(shutil.copytree(tiny_run.path, tmp_path / "run"))
    shutil.move(run.heads.folder(4), tmp_path / "later")
    program = Path(sys.executable).with_name("fedlora")
    with hosted(run) as address:
        command = [program, "watch", address, "--json", "--pull", tmp_path / "pulled"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
            assert watch.stdout is not None
            first = json.loads(watch.stdout.readline())
            shutil.move(tmp_path / "later", run.heads.folder(4))
            second = json.loads(watch.stdout.readline())
            limit = time.monotonic() + 30
            while not (tmp_path / "pulled/ledger/0004").exists() and time.monotonic() < limit:
                time.sleep(0.1)
            watch.send_signal(signal.SIGINT)
            assert watch.wait(20) == 130
    assert (first["round"], second["round"]) == (3, 4)
    assert second["head"] == RunDirectory.open(tmp_path / "pulled").heads.record().hash
    assert second["metrics"]["train_loss"] > 0
