"""Whatever is asked, the hub answers or refuses: it does not crash, grow, or open others' files.

The long one runs for FUZZ_MINUTES (1 if not set):
`FUZZ_MINUTES=10 python -m pytest -m slow -s tests/hub/test_fuzz.py`.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fedlora.cli.processes import free_port
from fedlora.server.making import MERGED, SNAPSHOT, make
from fedlora.server.rundir import RunDirectory

from .conftest import hosted
from .requests import calls, exchange

Calls = st.SearchStrategy[tuple[str, bytes]]
GROWTH = 64 << 20  # bytes, after the first fifth of the time
MINUTES = float(os.environ.get("FUZZ_MINUTES", 1))

# `fedlora hub`, writing down what it opens outside the run's directory and this Python.
WATCHED = """
import os, sys
run, log, port = sys.argv[1:]
import fedlora.server.hosting
from fedlora.cli.main import main
allowed = [run, sys.prefix, sys.base_prefix, *filter(None, sys.path), "/dev/null", "/proc"]
allowed = tuple(allowed + [os.path.realpath(one) for one in allowed])
found = os.open(log, os.O_WRONLY | os.O_CREAT)
def hook(event, details):
    if event == "open" and isinstance(details[0], (str, bytes)):
        path = os.path.abspath(os.fsdecode(details[0]))
        if not path.startswith(allowed):
            os.write(found, path.encode() + b"\\\\n")
sys.addaudithook(hook)
sys.argv = ["fedlora", "hub", run, "--port", port]
main()
"""


@pytest.fixture(scope="module")
def early(
    tiny_run: RunDirectory, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunDirectory, Calls]:
    """Rounds 0 and 1 of the run, with every form made: then no request takes long."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(tiny_run.path, folder, ignore=shutil.ignore_patterns("hub", "000[2-9]"))
    run = RunDirectory.open(folder)
    for round, form in ((0, MERGED), (1, MERGED), (1, SNAPSHOT)):
        make(run, round, form)
    record = run.heads.record()
    return run, calls([bytes.fromhex(one) for one in (record.adapter, *record.history)])


@pytest.fixture(scope="module")
def channel(early: tuple[RunDirectory, Calls]) -> Iterator[grpc.Channel]:
    with hosted(early[0]) as address, grpc.insecure_channel(address) as opened:
        yield opened


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_request_is_answered_or_refused(
    early: tuple[RunDirectory, Calls], channel: grpc.Channel, data: st.DataObject
) -> None:
    run, requests = early
    exchange(channel, run, *data.draw(requests))


@pytest.mark.slow
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_minutes_of_any_requests(early: tuple[RunDirectory, Calls], tmp_path: Path) -> None:
    run, requests = early
    port, log, sent, before = free_port(), tmp_path / "opened", [0], 0
    began, seconds = time.monotonic(), MINUTES * 60

    @settings(
        max_examples=300,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests)
    def some(request: tuple[str, bytes]) -> None:
        exchange(opened, run, *request)
        sent[0] += 1

    command = [sys.executable, "-c", WATCHED, str(run.path), str(log), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hub:
        try:
            assert hub.stdout is not None
            assert str(port) in hub.stdout.readline()
            process = psutil.Process(hub.pid)
            with grpc.insecure_channel(f"127.0.0.1:{port}") as opened:
                while time.monotonic() - began < seconds:
                    some()
                    garbage(port)
                    if not before and time.monotonic() - began > seconds / 5:
                        before = process.memory_info().rss
            after = process.memory_info().rss
            assert hub.poll() is None
        finally:
            hub.kill()
    print(f"{sent[0]} requests in {MINUTES:g} min; {before >> 20} to {after >> 20} MiB")
    assert log.read_text() == ""
    assert after - before < GROWTH


def garbage(port: int) -> None:
    """Bytes that are no HTTP/2, and ones that begin like it."""
    for start in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), 5) as raw:
            raw.sendall(start + os.urandom(500))
