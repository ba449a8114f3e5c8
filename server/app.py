"""The coordinator's Flower ServerApp, as Flower's deployment and Ray engines start it."""

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlora.adapters import FedloraError
from fedlora.protos.keys import KEYS
from fedlora.recipes.loading import RUN_DIRECTORY

from .coordinator import coordinate
from .events import RunFailed
from .rundir import RunDirectory

POLL = 0.5  # seconds

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Coordinate the run whose directory the environment names; events go to its log."""
    run = RunDirectory.open(Path(os.environ[RUN_DIRECTORY]))
    keys = Path(os.environ[KEYS]) if KEYS in os.environ else None
    try:
        coordinate(grid, run, lambda event: None, run.recipe.federation.wait, POLL, keys)
    except FedloraError as error:
        run.log(RunFailed(type(error).__name__, str(error)))
        raise
