"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe file (TOML), or the name of a bundled recipe.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the recipe, as in train.steps=20. May be repeated.",
        show_default=False,
    ),
]
NewRunDirectory = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        metavar="FOLDER",
        help="Folder to make for this run.",
        show_default="runs/<recipe>-<time>",
    ),
]
RunArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False),
]
Round = Annotated[
    int | None,
    typer.Option("--round", min=0, help="Which round's head.", show_default="the last"),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Machine-readable output, errors included."),
]
