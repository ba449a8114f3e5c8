"""Files by which a node's short-lived Flower processes tell `fedlora join` how things stand."""

import json
import os
from pathlib import Path

from fedlora.adapters import FedloraError

DONE = "done"  # the run's last head is evaluated
FAILED = "failed.json"  # class and message of the last error


def signal_done(state: Path) -> None:
    """The run is over for this node."""
    (state / DONE).touch()


def signal_failure(state: Path, error: FedloraError) -> None:
    """A message couldn't be served; the file appears whole."""
    scratch = state / (FAILED + ".new")
    scratch.write_text(json.dumps({"error": type(error).__name__, "message": str(error)}))
    os.replace(scratch, state / FAILED)
