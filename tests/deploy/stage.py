"""Plays a container engine with plain processes: the services' own commands, environment and files.

What a container sees as /pki/clinic is a link in a folder that the service has for itself, and
paths, ports and host names in commands are exchanged accordingly. There is no isolation; instead
there is no home folder and no file of the session's environment, so what a service needs and
doesn't say is missed.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedlora.cli.processes import free_port

from . import image
from .composefile import ROOT, Mount, Service, load, services


class Stage:
    """Services of one Compose file.

    Attributes:
        volumes: a folder with one for each volume.
        nowhere: where services are started; a container can't write there.
    """

    def __init__(self, folder: Path, compose: Path, variables: Mapping[str, str]) -> None:
        self.services = services(load(compose, variables))
        self.volumes, self.nowhere, self._folder = folder / "volumes", folder / "nowhere", folder
        self._compose, self._started = compose, list["subprocess.Popen[bytes]"]()
        self._ports = {port: str(free_port()) for port in ("8000", "8100")}
        self.nowhere.mkdir(parents=True)

    def start(self, name: str, *command: str) -> "subprocess.Popen[bytes]":
        """Start a service, as `up` does or, with a command of one's own, `run`."""
        service = self.services[name]
        entrypoint = service.entrypoint or json.loads(image.last("ENTRYPOINT")[0])
        process = self._spawn(service, [*entrypoint, *(command or service.command)])
        self._started.append(process)
        return process

    def run(self, name: str, *command: str) -> int:
        return self.start(name, *command).wait(timeout=300)

    def is_healthy(self, name: str) -> bool:
        service = self.services[name]
        assert service.healthcheck is not None
        return self._spawn(service, service.healthcheck).wait(timeout=60) == 0

    def said(self, name: str) -> str:
        """All output of a service and of its health checks."""
        return (self._folder / f"{name}.log").read_text()

    def stop(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._started:
            process.wait(timeout=60)

    def _spawn(self, service: Service, command: list[str]) -> "subprocess.Popen[bytes]":
        root = self._folder / "containers" / service.name
        for mount in service.mounts:
            self._mount(mount, root / mount.target[1:])
        (root / "tmp").mkdir(parents=True, exist_ok=True)
        given = {**image.environment(), "TMPDIR": "/tmp", **service.environment}
        environment = {name: self._here(service, value) for name, value in given.items()}
        environment |= {"HOME": os.devnull, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        if "PYTHONPATH" in os.environ:
            environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        with (self._folder / f"{service.name}.log").open("ab") as log:
            return subprocess.Popen(
                [self._here(service, word) for word in command],
                cwd=self.nowhere,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _mount(self, mount: Mount, place: Path) -> None:
        source = self.volumes / mount.source if mount.is_volume else ROOT / mount.source
        if mount.is_volume:
            source.mkdir(parents=True, exist_ok=True)
        assert source.exists(), f"{source} is not there to be mounted"
        if not place.is_symlink():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(source)

    def _here(self, service: Service, text: str) -> str:
        """What stands for `text` on this machine."""
        tops = {mount.target.split("/")[1] for mount in service.mounts} | {"tmp"}
        names = "|".join(map(re.escape, sorted(tops)))
        root = self._folder / "containers" / service.name
        text = re.sub(rf"(?<![\w./])/(?=(?:{names})(?![\w.-]))", f"{root}/", text)
        text = re.sub(rf"(?<![\w/-])(?:{'|'.join(self.services)})(?=:\d)", "localhost", text)
        return re.sub(r"\b(8000|8100)\b", lambda port: self._ports[port[0]], text)


def wait_for(true: Callable[[], bool], seconds: float = 240.0) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it didn't come"
        time.sleep(1)
