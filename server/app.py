"""The coordinator's Flower ServerApp, as Flower's deployment and Ray engines start it."""

import os
import time
from pathlib import Path
from threading import Thread

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlora.adapters import FedloraError
from fedlora.protos.keys import KEYS
from fedlora.recipes.loading import RUN_DIRECTORY

from .coordinator import coordinate
from .events import RunFailed
from .rundir import RunDirectory

POLL = 0.5  # seconds between two looks for replies, and for the process that started this one

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Coordinate the run whose directory the environment names; events go to its log."""
    Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    run = RunDirectory.open(Path(os.environ[RUN_DIRECTORY]))
    keys = Path(os.environ[KEYS]) if KEYS in os.environ else None
    try:
        coordinate(grid, run, lambda event: None, run.recipe.federation.wait, POLL, keys)
    except FedloraError as error:
        run.log(RunFailed(type(error).__name__, str(error)))
        raise


def _end_with(parent: int) -> None:
    """Leave the run to its next coordinator: Flower lets this process live on when it dies."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os._exit(1)
