"""`fedlora recipes`: the ready-made recipes, to see and to copy."""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson

app = typer.Typer(
    no_args_is_help=True,
    help="List, show and copy the bundled recipes.",
    epilog="Example: fedlora recipes copy demo my-run",
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a bundled recipe.", show_default=False)
]


@app.command("list", epilog="Example: fedlora recipes list")
def list_(as_json: AsJson = False) -> None:
    """Name every bundled recipe, with one line about it."""
    from fedlora.recipes import bundled

    about = {name: bundled.summary(name) for name in bundled.names()}
    if as_json:
        typer.echo(json.dumps(about, ensure_ascii=False))
        return
    width = max(map(len, about), default=0)
    for name, line in about.items():
        typer.echo(f"{name:<{width}}  {line}")


@app.command(epilog="Example: fedlora recipes show demo > mine.toml")
def show(name: Name) -> None:
    """Print a bundled recipe as it is, comments included."""
    from fedlora.recipes import bundled

    typer.echo(bundled.path(name).read_text(encoding="utf-8"), nl=False)


@app.command(
    epilog="Example: fedlora recipes copy demo my-run && fedlora simulate my-run/demo.toml"
)
def copy(
    name: Name,
    destination: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Where to put the copy.", show_default=False),
    ],
    as_json: AsJson = False,
) -> None:
    """Copy a bundled recipe and its data files, ready to be changed and run."""
    from fedlora.adapters.errors import RunError
    from fedlora.recipes import bundled
    from fedlora.recipes.loading import data_files, load_recipe

    sources = [bundled.path(name), *(path for _, path in data_files(load_recipe(name)))]
    copies = {path: destination / path.relative_to(bundled.FOLDER) for path in sources}
    for target in copies.values():
        if target.exists():
            raise RunError(f"{target} exists already; nothing is overwritten: name another folder")
    try:
        for source, target in copies.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
    except OSError as error:
        raise RunError(f"cannot write to {destination}: {error.strerror}") from None
    recipe = copies[sources[0]]
    typer.echo(json.dumps({"recipe": str(recipe)}) if as_json else str(recipe))
