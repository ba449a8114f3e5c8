"""A real run of a tiny model, hubs that serve it in a thread or as a process, and key folders."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from fedlora.adapters import Adapter, Factors, Residual
from fedlora.cli import engines
from fedlora.protos.clientkeys import make_client
from fedlora.protos.keymaking import make_authority, make_coordinator
from fedlora.protos.keys import AuthorityKeys, CoordinatorKeys
from fedlora.recipes.schema import Recipe
from fedlora.server.hosting import serve
from fedlora.server.making import MERGED, SNAPSHOT, make
from fedlora.server.rundir import RunDirectory
from tests.cli.conftest import call as call
from tests.engines.conftest import SITES, write_facts

Hosted = Callable[..., AbstractContextManager[str]]
ROUNDS = 4


def tiny_recipe(folder: Path, model: Path) -> Recipe:
    nodes = [
        {"name": site, "data": str(write_facts(folder / f"{site}.jsonl", site, 6))}
        for site in SITES
    ]
    content = {
        "name": "tiny",
        "model": {"source": str(model)},
        "lora": {"rank": 4},
        "train": {"steps": 2, "batch_size": 2, "learning_rate": 1e-2, "threads": 1},
        "federation": {"rounds": ROUNDS, "min_nodes": len(SITES)},
        "node": nodes,
    }
    return Recipe.model_validate(content)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, tiny_causal: Path) -> RunDirectory:
    """Four rounds by the in-process engine; the log outgrows the weights in the last.

    Some forms are made here already: a hub starts a process for each, which takes seconds.
    """
    folder = tmp_path_factory.mktemp("hub")
    recipe = tiny_recipe(folder, tiny_causal)
    run = engines.simulate(recipe, folder / "run", "inprocess", lambda event: None)
    assert run.heads.rounds() == list(range(ROUNDS + 1))
    for round, form in ((1, SNAPSHOT), (0, MERGED), (2, MERGED)):
        make(run, round, form)
    return run


def fabricated(folder: Path, sizes: list[int]) -> RunDirectory:
    """A run whose rounds folded residuals of so many bytes; no model goes with it."""
    recipe = Recipe.model_validate(
        {"name": "large", "model": {"source": "smollm2-135m"}, "federation": {"min_nodes": 1}}
    )
    run = RunDirectory.create(folder, recipe)
    generator = torch.Generator().manual_seed(0)
    for size in [0, *sizes]:
        commit(run, torch.rand(size // 4, 1, generator=generator) if size else None)
    return run


def commit(run: RunDirectory, residual: torch.Tensor | None = None) -> None:
    """One more round."""
    adapter = Adapter({"q": Factors(torch.zeros(8, 2), torch.ones(2, 8), 1.0)}, {})
    folded = {"q": Residual(residual, None)} if residual is not None else {}
    run.heads.commit("large", "b" * 64, adapter, folded)


@contextmanager
def hosted(
    run: RunDirectory,
    keys: CoordinatorKeys | None = None,
    tokens: Path | None = None,
    host: str = "127.0.0.1",
) -> Iterator[str]:
    """A hub in a thread of this process; gives its address."""
    ready: Future[str] = Future()
    with in_thread(serve(run, host, 0, keys, tokens, ready.set_result)):
        yield ready.result(20)


@contextmanager
def in_thread(work: Coroutine[Any, Any, None]) -> Iterator[None]:
    """Something asynchronous in a thread of its own, until the block ends."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def main() -> None:
        task = asyncio.ensure_future(work)
        started.set_result((asyncio.get_running_loop(), task))
        await asyncio.wait([task])

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    loop, task = started.result(20)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(20)
        assert not thread.is_alive()


class HubProcess:
    """A hub as users run it: `fedlora hub`, which can be killed and started again."""

    def __init__(self, run: RunDirectory, port: int, *options: object) -> None:
        self._command = [Path(sys.executable).with_name("fedlora"), "hub", run.path]
        self._command += ["--port", port, *options]
        self.address = f"127.0.0.1:{port}"
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            list(map(str, self._command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert self.address in line, line + process.stdout.read()
        return process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.process = self._start()


@contextmanager
def hub_process(run: RunDirectory, port: int, *options: object) -> Iterator[HubProcess]:
    started = HubProcess(run, port, *options)
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca, coordinator, and the clients library and museum."""
    root = tmp_path_factory.mktemp("pki")
    authority = make_authority(root / "ca", 30)
    make_coordinator(root / "coordinator", authority, ["fed.example.org"], 30)
    for name in ("library", "museum"):
        make_client(root / name, AuthorityKeys.open(root / "ca"), name, 30, root / "coordinator")
    return root


@pytest.fixture(scope="session")
def coordinator(pki: Path) -> CoordinatorKeys:
    return CoordinatorKeys.open(pki / "coordinator")


def secret(path: Path, content: str) -> Path:
    path.touch(0o600)
    path.write_text(content)
    return path


@pytest.fixture
def address(tiny_run: RunDirectory) -> Iterator[str]:
    """Of a hub on loopback, without keys."""
    with hosted(tiny_run) as at:
        yield at
