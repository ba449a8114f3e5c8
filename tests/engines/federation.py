"""A federation as users start it: `fedlora` processes, TLS, and a key for each node."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from fedlora.cli.processes import free_port
from fedlora.recipes.loading import dump
from fedlora.recipes.schema import Recipe
from fedlora.server.rundir import RunDirectory

FEDLORA = str(Path(sys.executable).parent / "fedlora")


class Federation:
    """Processes of one federation, each with its keys.

    Args:
        folder: for keys, states and the run.
        recipe: whose [[node]]s can join.
        host: by which nodes call the coordinator.
        prefixes: put before a command by role ("coordinator", "node"), to run it elsewhere.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        host: str = "localhost",
        prefixes: dict[str, Sequence[str]] | None = None,
    ) -> None:
        self.pki, self.folder, self.recipe, self.host = folder / "pki", folder, recipe, host
        self.prefixes = prefixes or {}
        self.run_dir, self.port = folder / "run", free_port()
        self.started: list[subprocess.Popen[str]] = []
        coordinator = self.pki / "coordinator"
        self.keys("ca", "--out", self.pki / "ca")
        self.keys("server", "--ca", self.pki / "ca", "--host", host, "--out", coordinator)
        for node in recipe.node:
            path = self.pki / node.name
            self.keys("node", node.name, "--out", path, "--coordinator", coordinator)
            self.keys("register", path / f"{node.name}.pub", "--coordinator", coordinator)

    @property
    def run(self) -> RunDirectory:
        return RunDirectory.open(self.run_dir)

    def start(self, *arguments: object, role: str = "") -> "subprocess.Popen[str]":
        command = [*self.prefixes.get(role, ()), FEDLORA, *map(str, arguments)]
        out = subprocess.PIPE
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True)
        self.started.append(process)
        return process

    def keys(self, *arguments: object) -> None:
        process = self.start("keys", *arguments)
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 0, said

    def coordinate(self) -> "subprocess.Popen[str]":
        file = self.folder / "recipe.toml"
        file.write_text(dump(self.recipe.model_copy(update={"node": ()})))
        serving = ("--host", self.host, "--port", self.port, "--keys", self.pki / "coordinator")
        return self.start(
            "coordinator", file, *serving, "--run-dir", self.run_dir, role="coordinator"
        )

    def join(self, name: str) -> "subprocess.Popen[str]":
        data = next(node.data for node in self.recipe.node if node.name == name)
        options = ("--name", name, "--data", data, "--threads", 1, "--keys", self.pki / name)
        options += ("--model", self.recipe.model.source, "--state-dir", self.folder / name)
        return self.start("join", f"{self.host}:{self.port}", *options, role="node")


@contextmanager
def running(federation: Federation) -> Iterator[Federation]:
    """Stop every process at the end, also those that are frozen."""
    yield federation
    for process in federation.started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def descendants(process: "subprocess.Popen[str]", of: str) -> list[psutil.Process]:
    """Processes below `process` with this in their command line."""
    found = []
    for one in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            found += [one] if of in " ".join(one.cmdline()) else []
    return found
