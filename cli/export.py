"""`fedlora export`: the tuned model for other tools, which need no fedlora."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from .options import AsJson, Round, RunArgument

EXAMPLE = "Example: fedlora export runs/demo tuned-model --form merged"


def export(
    run: RunArgument,
    destination: Annotated[
        Path,
        typer.Argument(metavar="DESTINATION", help="Folder to make.", show_default=False),
    ],
    form: Annotated[
        Literal["merged", "adapter"],
        typer.Option(
            help="A whole model for transformers, or one PEFT adapter for the untouched base.",
            show_default=False,
        ),
    ],
    round: Round = None,
    as_json: AsJson = False,
) -> None:
    """Write the head of a run as a model folder, or as one ordinary PEFT adapter.

    Both give the head's logits: the adapter carries every residual exactly.
    """
    from fedlora.models.export import export_adapter, export_merged
    from fedlora.models.source import resolve
    from fedlora.server.rundir import RunDirectory

    from .folders import fresh

    opened = RunDirectory.open(run)
    head = opened.head(round)
    folder = fresh(destination)
    recipe = opened.recipe
    write = export_merged if form == "merged" else export_adapter
    write(
        resolve(recipe.model.source),
        recipe.model,
        head.adapter,
        head.residuals,
        recipe.lora,
        folder,
    )
    if as_json:
        typer.echo(json.dumps({"form": form, "round": head.round, "destination": str(folder)}))
    else:
        typer.echo(f"{form} model of round {head.round}: {folder}")
