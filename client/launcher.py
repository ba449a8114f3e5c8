"""Starts a ClientApp for each message by forking, with all that it needs loaded already.

Flower's SuperExec starts a new Python for each message, which loads Flower for more than a second
of CPU time before it does anything. And it would import what the coordinator sends; here a bundle
that carries code is refused. Otherwise this is Flower's SuperExec.
"""

import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from flwr.cli.install import install_from_fab
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec as superexec
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supernode.runtime import run_clientapp as clientapp

from . import app  # noqa: F401  # loaded now, so that no ClientApp has to
from .bundle import require_codeless


class ForkingExecutor(SubprocessExecutor):
    """Runs ClientApps, and nothing else, as forks of this process."""

    def __init__(self) -> None:
        """Work for the process that started this one."""
        self._supernode = os.getppid()

    def get_eligible_capacity(
        self,
        supported_task_types: set[TaskType],
        *,
        insecure: bool = False,
        root_certificates_path: str | None = None,
    ) -> tuple[set[TaskType], set[str]]:
        """ClientApps."""
        return {TaskType.CLIENT_APP}, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Fork, and serve the task in the child."""
        if os.fork() == 0:
            _run(spec)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Forget children that have ended, and end with the SuperNode; Flower calls this often."""
        if os.getppid() != self._supernode:
            os._exit(1)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _run(spec: ExecutionSpec) -> NoReturn:
    """Serve one task, and never return into Flower's loop above."""
    code = 1
    try:
        clientapp.run_clientapp(
            spec.runtime_api_address, spec.token, insecure=True, parent_pid=os.getppid()
        )
    except SystemExit as end:  # how it ends by itself
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def launch_apps(address: str, secret: bytes) -> None:
    """Serve the SuperNode at `address` (host:port on loopback) that knows `secret`."""

    def install_codeless(bundle: bytes, skip_prompt: bool) -> Path:
        require_codeless(bundle)
        return install_from_fab(bundle, skip_prompt=skip_prompt)

    vars(clientapp)["install_from_fab"] = install_codeless
    vars(superexec)["get_executor"] = lambda *_, **__: ForkingExecutor()
    superexec.run_superexec(address, insecure=True, superexec_auth_secret=secret)
