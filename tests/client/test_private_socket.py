"""Nobody else gets in: neither by the folder's mode, nor if that is lost."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from fedlora.adapters import EngineError
from fedlora.client.channel import look
from fedlora.client.private_socket import OnlyOwner, require_own, socket_path, target
from fedlora.protos.worker_pb2 import LookRequest, Standing
from fedlora.protos.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server

# Imports come before the change of user, who may not be allowed to read Python's folder.
FOREIGNER = """
import os, socket, sys, grpc
from fedlora.protos.worker_pb2 import LookRequest
from fedlora.protos.worker_pb2_grpc import WorkerStub
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(sys.argv[2])
    print("connected")
except OSError as error:
    print(type(error).__name__)
try:
    with grpc.insecure_channel(sys.argv[1]) as channel:
        print(WorkerStub(channel).Look(LookRequest(), timeout=5))
except grpc.RpcError as error:
    print(error.code().name)
"""


class Stand(WorkerServicer):
    def Look(self, request: LookRequest, context: grpc.ServicerContext) -> Standing:
        return Standing(done=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's."""
    made = Path(tempfile.mkdtemp(prefix="fedlora test % "))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def socket(folder: Path) -> Iterator[Path]:
    """A socket that is served."""
    path = socket_path(folder)
    server = grpc.server(ThreadPoolExecutor(2), interceptors=[OnlyOwner(path)])
    add_WorkerServicer_to_server(Stand(), server)
    server.add_insecure_port(target(path))
    server.start()
    yield path
    server.stop(0).wait()


def as_foreigner(socket: Path) -> list[str]:
    command = [sys.executable, "-c", FOREIGNER, target(socket), str(socket)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_owner_is_served(socket: Path) -> None:
    answer = look(socket, 5)
    assert answer is not None
    assert answer.done


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_connect(socket: Path) -> None:
    assert as_foreigner(socket)[0] == "PermissionError"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(sys.platform != "linux", reason="needs SO_PEERCRED")
def test_another_user_who_can_connect_is_cut_off_and_the_owner_still_served(socket: Path) -> None:
    socket.parent.chmod(0o755)
    socket.chmod(0o666)
    connected, answer = as_foreigner(socket)
    assert connected == "connected"
    assert answer in ("PERMISSION_DENIED", "UNAVAILABLE")
    socket.parent.chmod(0o700)
    assert look(socket, 5) is not None


def test_a_folder_that_others_may_enter_is_not_trusted(folder: Path) -> None:
    path = socket_path(folder)
    path.parent.chmod(0o755)
    with pytest.raises(EngineError, match=r"mode 755; expected .* 700"):
        require_own(path)
    assert socket_path(folder) == path  # one's own is put right
    require_own(path)


def test_without_a_folder_the_error_asks_for_join(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is `fedlora join` running"):
        require_own(tmp_path / "worker" / "socket")


def test_a_state_folder_too_deep_for_the_kernel_has_its_socket_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    path = socket_path(deep)
    try:
        assert len(os.fsencode(path)) <= 107
        assert path.parent.parent == Path("/tmp")
        assert path != socket_path(tmp_path)
        assert path.parent.stat().st_mode & 0o777 == 0o700
    finally:
        path.parent.rmdir()
