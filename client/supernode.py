"""Flower's SuperNode, with three changes.

    python -m fedlora.client.supernode --port PORT OPTIONS OF flower-supernode

It ends when its main loop does. Flower's own program stays after an error that the loop doesn't
recover from (an unexpected status, a broken TLS handshake): the thread of its local HTTP server
keeps the process alive, and whoever supervises it is none the wiser.

It is quicker. Flower's loop looks for a message every 3 s, and for the reply to it every 0.5 s;
each round sits through both. And ClientApps are forked (`launcher.py`).

Its local API asks for a secret, so that no other user of the machine can take a message from it.
"""

import os
import secrets
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType, SimpleNamespace

from flwr.supernode import start_client_internal as loop
from flwr.supernode.cli import flower_supernode

from .launcher import launch_apps

HASTE = 6.0  # times as often; twice a second, since the coordinator has to answer every node
FAREWELL = 10  # seconds; Flower ends a process that was asked to within 5


def main() -> None:
    """Run a SuperNode and its launcher, neither of which outlives the other."""
    port, secret = sys.argv[sys.argv.index("--port") + 1], secrets.token_bytes(32)
    file = Path(os.environ["FLWR_HOME"]) / "superexec.secret"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.touch(mode=0o600, exist_ok=False)
    file.write_bytes(secret)
    launcher = os.fork()
    if launcher == 0:
        launch_apps(f"127.0.0.1:{port}", secret)
        return

    def child_ended(number: int, frame: FrameType | None) -> None:
        """End with the launcher, but not so quickly that a farewell to the coordinator is cut."""
        with suppress(ChildProcessError):  # it was another child, and the launcher is gone already
            if os.waitpid(launcher, os.WNOHANG)[0]:
                signal.alarm(FAREWELL)

    signal.signal(signal.SIGCHLD, child_ended)
    sys.argv += ["--isolation", "process", "--superexec-auth-secret-file", str(file)]
    # The pauses are written into Flower's code, as `time.sleep(3)`.
    vars(loop)["time"] = SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / HASTE))
    flower_supernode()
    os._exit(1)


if __name__ == "__main__":
    main()
