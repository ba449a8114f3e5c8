"""Nobody holds the hub up: not by many calls, slow ones, large ones, or senseless ones."""

import asyncio
import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from fedlora.adapters import EngineError
from fedlora.cli.processes import free_port
from fedlora.client.hub import Hub
from fedlora.client.pulling import pull
from fedlora.protos.clientkeys import ClientKeys, make_client
from fedlora.protos.hub_pb2 import FORM_LOG, Offer, PullRequest
from fedlora.protos.hub_pb2_grpc import HubStub, add_HubServicer_to_server
from fedlora.protos.keys import AuthorityKeys, CoordinatorKeys
from fedlora.server import doorkeeper
from fedlora.server.doorkeeper import STREAMS_PER_PARTY, Doorkeeper, by_place
from fedlora.server.hosting import serve
from fedlora.server.hub import HubService
from fedlora.server.rundir import RunDirectory

from .conftest import fabricated, hosted, hub_process, in_thread

MIB = 1 << 20


def test_a_party_has_so_many_streams_and_others_theirs(
    tiny_run: RunDirectory, coordinator: CoordinatorKeys, pki: Path
) -> None:
    library, museum = (ClientKeys.open(pki / name) for name in ("library", "museum"))
    with hosted(tiny_run, coordinator) as address, ExitStack() as stack:
        hubs = [stack.enter_context(Hub(address, library)) for _ in range(STREAMS_PER_PARTY)]
        watches = [hub.watch() for hub in hubs]
        assert [next(news).round for news in watches] == [4] * STREAMS_PER_PARTY
        with Hub(address, library) as more, pytest.raises(EngineError) as caught:
            more.describe()
        assert "busy: library has 4 of 4 streams" in str(caught.value)
        with Hub(address, museum) as other:
            assert other.describe().run == "tiny"
        watches[0].close()
        time.sleep(0.5)
        with Hub(address, library) as again:
            assert again.describe().run == "tiny"


def test_all_parties_together_have_so_many_streams(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorkeeper, "STREAMS", 1)
    with Hub(address) as hub, Hub(address) as other:
        watch = hub.watch()
        next(watch)
        with pytest.raises(EngineError, match="all parties together 1 of 1"):
            other.describe()
        watch.close()


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[str]:
    """The address of a hub that waits for nobody longer than half a second."""
    run = fabricated(tmp_path / "run", [32 * MIB])
    ready: Future[int] = Future()

    async def serve() -> None:
        doorkeeper = Doorkeeper(by_place, stall=0.5, request=0.5)
        server = grpc.aio.server(interceptors=[doorkeeper])
        add_HubServicer_to_server(HubService(run), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ready.set_result(port)
        try:
            await server.wait_for_termination()
        finally:
            await server.stop(0)

    with in_thread(serve()):
        yield f"127.0.0.1:{ready.result(20)}"


def status(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    code: grpc.StatusCode = caught.value.code()
    return code


def test_S11_a_reader_that_stops_reading_is_cut(impatient: str) -> None:
    with grpc.insecure_channel(impatient) as channel:
        calls = [HubStub(channel).Pull(PullRequest()) for _ in range(STREAMS_PER_PARTY)]
        for call in calls:
            next(call)
        time.sleep(2)
        assert next(HubStub(channel).Watch(PullRequest())) is not None  # the places are free
        assert status(calls[0]) == grpc.StatusCode.DEADLINE_EXCEEDED


def test_S11_a_request_that_does_not_come_is_not_waited_for(impatient: str) -> None:
    def trickle() -> Iterator[bytes]:
        time.sleep(3)
        yield b""

    with grpc.insecure_channel(impatient) as channel:
        call = channel.stream_stream("/fedlora.v1.Hub/Pull")(trickle())
        began = time.monotonic()
        assert status(call) == grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - began < 2


def test_S11_a_request_over_the_limit_is_refused(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_stream("/fedlora.v1.Hub/Pull")(b"\x0a" * (2 * MIB))
        assert status(call) == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("content", [b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", os.urandom(1000)])
def test_S1_a_request_that_is_none_is_refused(address: str, content: bytes) -> None:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_stream("/fedlora.v1.Hub/Pull")(content)
        assert status(call) == grpc.StatusCode.INVALID_ARGUMENT


def test_another_method_or_service_is_none(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        for name in ("/fedlora.v1.Hub/Push", "/grpc.reflection.v1.ServerReflection/X"):
            call = channel.unary_stream(name)(b"")
            assert status(call) == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.slow
def test_S11_a_connection_that_never_speaks_is_closed(
    tiny_run: RunDirectory, coordinator: CoordinatorKeys
) -> None:
    with hosted(tiny_run, coordinator) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.settimeout(30)
            began = time.monotonic()
            assert silent.recv(1) == b""
            assert 5 < time.monotonic() - began < 20


def test_a_full_port_is_named(tiny_run: RunDirectory, address: str) -> None:
    port = int(address.rpartition(":")[2])
    with pytest.raises(EngineError, match=f"cannot listen on 127.0.0.1:{port}"):
        asyncio.run(serve(tiny_run, "127.0.0.1", port, None, None, lambda at: None))


def drained(address: str, keys: ClientKeys) -> str:
    """SHA-256 of the one large file that a pull brings, which is thrown away."""
    hasher = hashlib.sha256()
    with Hub(address, keys) as hub:
        for reply in hub.pull(lambda: PullRequest(form=FORM_LOG)):
            if reply.HasField("offer"):
                files = Offer.FromString(reply.offer.offer).files
                large = max(range(len(files)), key=lambda index: files[index].size)
            elif reply.piece.file == large:
                hasher.update(reply.piece.content)
    assert hasher.digest() == files[large].digest
    return hasher.hexdigest()


@pytest.mark.parametrize(
    "size", [40 * MIB, pytest.param(200 * MIB, marks=pytest.mark.slow)], ids=["40MiB", "200MiB"]
)
def test_ten_parties_at_once_and_memory_stays_flat(pki: Path, tmp_path: Path, size: int) -> None:
    run = fabricated(tmp_path / "run", [size])
    keys = [ClientKeys.open(pki / name) for name in ("library", "museum")]
    ca = AuthorityKeys.open(pki / "ca")
    keys += [make_client(tmp_path / f"p{i}", ca, f"p{i}", 9) for i in range(8)]
    with hub_process(run, free_port(), "--keys", pki / "coordinator") as hub:
        server, peak, done = psutil.Process(hub.process.pid), [0], threading.Event()

        def sample() -> None:
            while not done.wait(0.02):
                peak[0] = max(peak[0], server.memory_info().rss)

        with Hub(hub.address, keys[0]) as one:
            pull(one, tmp_path / "first")
        before = server.memory_info().rss
        sampler = threading.Thread(target=sample)
        sampler.start()
        began = time.monotonic()
        with ThreadPoolExecutor(len(keys)) as pool:
            digests = set(pool.map(drained, [hub.address] * len(keys), keys))
        seconds = time.monotonic() - began
        done.set()
        sampler.join()
    assert len(digests) == 1
    growth = peak[0] - before
    print(f"{len(keys)} x {size / MIB:.0f} MiB in {seconds:.1f} s", end="; ")
    print(f"hub {before / MIB:.0f} MiB, at most {growth / MIB:.0f} MiB more")
    assert growth < 96 * MIB  # a few pieces for each, whatever the size
