"""`fedlora coordinator`: the server of a federation of real machines."""

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Overrides, RecipeArgument, Resume, RunFolder

EXAMPLE = "Example: fedlora coordinator demo --host 0.0.0.0 --keys pki/coordinator"


def coordinator(
    recipe: RecipeArgument,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The coordinator's keys; needed to serve other machines.",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
    run_dir: RunFolder = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Wait for the nodes that join, lead them through the rounds, and keep every head."""
    from fedlora.recipes.loading import load_recipe

    from .folders import run_directory

    loaded = load_recipe(recipe, overrides or ())
    folder = run_directory(loaded.name, run_dir, resume)

    from . import engines
    from .progress import progress

    with progress(as_json) as listener:
        engines.coordinate(loaded, folder, host, port, keys, listener)
