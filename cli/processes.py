"""Child processes: started with a log, waited for with a limit, and never left behind.

Not even by a parent that is killed outright: beside each child sits a shell that waits for the end
of a pipe, which the kernel closes when the parent dies, and then kills the child's group.
"""

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fedlora.adapters.errors import EngineError

GRACE = 5.0  # seconds between asking a process to stop and killing it

FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}


_GUARD = 'read -r _; kill -s KILL -- "-$1"'


class Child:
    """A process in a group of its own, its output in a file; stopped with all it started."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, name: str = ""
    ) -> None:
        """Start `command`: a program of this Python's environment, and its arguments.

        Args:
            command: what to run.
            environment: set besides this process's own.
            log: gets the output.
            name: for messages, if not that of the program.

        Raises:
            EngineError: if there is no such program.
        """
        self.name, self.log = name or command[0], log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [program(command[0]), *command[1:]],
                env={**os.environ, **environment, "PATH": _path()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._stopped = False
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", str(self._process.pid)],
            stdin=subprocess.PIPE,  # never written to
            start_new_session=True,
        )

    def __enter__(self) -> "Child":
        """Stop the process on leaving."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the process, whatever happened."""
        self.stop()

    @property
    def pid(self) -> int:
        """The process's number, which is its group's too."""
        return self._process.pid

    def ended(self) -> str:
        """How the process ended, with the end of its log; empty while it lives."""
        code = self._process.poll()
        if code is None:
            return ""
        return f"{self.name} ended with exit code {code}. {self.last_words()}"

    def check(self) -> None:
        """See that the process lives.

        Raises:
            EngineError: with the end of its log, if it has ended.
        """
        if reason := self.ended():
            raise EngineError(reason)

    def last_words(self) -> str:
        """Where the log is, and how it ends."""
        lines = self.log.read_text(errors="replace").strip().splitlines()[-5:]
        return "\n  ".join([f"Its log {self.log} ends:", *lines])

    def stop(self, grace: float = GRACE) -> None:
        """End the process and its group: ask, and kill what is left after `grace` seconds."""
        if self._stopped:  # its number may be another process's by now
            return
        self._stopped = True
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, sign)
            except ProcessLookupError:
                break
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                continue
        self._guard.kill()
        self._guard.communicate()


def _path() -> str:
    """The search path with this Python's programs first: Flower starts its own by bare name."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def program(name: str) -> str:
    """The path of a program of this Python's environment.

    Raises:
        EngineError: if it isn't installed.
    """
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise EngineError(f"{path} is missing; it comes with Flower: reinstall fedlora")
    return str(path)


def require_free(host: str, port: int) -> None:
    """See that a server can listen there.

    Raises:
        EngineError: if it can't.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise EngineError(
                f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it, or choose "
                "another with --port"
            ) from None


def free_port() -> int:
    """A port on loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_healthy(child: Child, port: int, seconds: float, authority: Path | None = None) -> None:
    """Wait until a Flower process answers on loopback; by TLS, if there is an authority.

    Raises:
        EngineError: if it ends, or doesn't answer in time.
    """
    limit = time.monotonic() + seconds
    context = ssl.create_default_context(cafile=str(authority)) if authority else None
    url = f"{'https' if context else 'http'}://127.0.0.1:{port}"
    while time.monotonic() < limit:
        child.check()
        if not unhealthy(url, context):
            return
        time.sleep(0.2)
    raise EngineError(f"{child.name} didn't answer within {seconds:g} s. {child.last_words()}")


def unhealthy(url: str, context: ssl.SSLContext | None = None) -> str:
    """Why a SuperLink can't be reached; empty if it answers."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2, context=context):
            return ""
    except OSError as error:
        return str(getattr(error, "reason", None) or error)
