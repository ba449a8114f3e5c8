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
    from fedlora.adapters.errors import RunError
    from fedlora.models.export import export_adapter, export_merged
    from fedlora.models.fingerprint import require_fingerprint
    from fedlora.models.source import resolve
    from fedlora.server.rundir import RunDirectory
    from fedlora.server.snapshots import opened as opened_snapshot

    from .folders import fresh

    opened = RunDirectory.open(run)
    head = opened.head(round)
    folder = fresh(destination)
    recipe = opened.recipe
    base = require_fingerprint(resolve(recipe.model.source), head.base)
    parts = base, recipe.model, head.adapter, head.residuals, recipe.lora, folder
    folded = opened_snapshot(head.snapshot) if head.snapshot else None
    if form == "merged":
        export_merged(*parts, folded)
    elif folded:
        raise RunError(
            f"{run} holds folded weights in place of the first {folded.covers} residual(s), which "
            "an adapter would be made of: pull it with --form log, or export it merged"
        )
    else:
        export_adapter(*parts)
    if as_json:
        typer.echo(json.dumps({"form": form, "round": head.round, "destination": str(folder)}))
    else:
        typer.echo(f"{form} model of round {head.round}: {folder}")
