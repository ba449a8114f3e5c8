"""Files by which a node's short-lived Flower processes tell `fedlora join` how things stand."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedlora.adapters import FedloraError

from .training import StepReport

DONE = "done"  # the run's last head is evaluated
FAILED = "failed.json"  # class and message of the last error
STEP = "step.json"  # the last training step


def signal_done(state: Path) -> None:
    """The run is over for this node."""
    (state / DONE).touch()


def signal_failure(state: Path, error: FedloraError) -> None:
    """A message couldn't be served."""
    _write(state / FAILED, {"error": type(error).__name__, "message": str(error)})


def signal_step(state: Path, report: StepReport) -> None:
    """A training step is done."""
    _write(state / STEP, asdict(report))


def read_signal(state: Path, name: str) -> dict[str, Any] | None:
    """What `FAILED` or `STEP` says; None if there is nothing yet."""
    try:
        content: dict[str, Any] = json.loads((state / name).read_text())
    except FileNotFoundError:
        return None
    return content


def clear(state: Path) -> None:
    """Forget what an earlier run left."""
    for name in (DONE, FAILED, STEP):
        (state / name).unlink(missing_ok=True)


def _write(path: Path, content: Mapping[str, object]) -> None:
    """The file appears whole, so that a reader never sees half of it."""
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(content))
    os.replace(scratch, path)
