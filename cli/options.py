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
RunFolder = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        metavar="FOLDER",
        help="Folder of this run; one that was begun with this recipe is gone on with.",
        show_default="runs/<recipe>-<time>",
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with the latest run, or with that in --run-dir."),
]
RunArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False),
]
Round = Annotated[
    int | None,
    typer.Option("--round", min=0, help="Which round's head.", show_default="the last"),
]
ModelSource = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="Where this machine has the base model.",
        show_default="as in the recipe",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Machine-readable output, errors included."),
]
