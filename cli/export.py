"""`fedlora export`: the tuned model for other tools, which need no fedlora."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .options import AsJson, Round, RunArgument

if TYPE_CHECKING:
    from fedlora.server.rundir import RunDirectory

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
    bits: Annotated[
        int | None,
        typer.Option(help="Of a run with adapters per width: all at one.", show_default=False),
    ] = None,
    subnet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Likewise: the subnet.json that `fedlora subnet search` wrote.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the head of a run as a model folder, or as one ordinary PEFT adapter.

    Both give the head's logits: the adapter carries every residual exactly.
    """
    from fedlora.adapters.errors import RunError
    from fedlora.models.export import export_adapter
    from fedlora.models.fingerprint import require_fingerprint
    from fedlora.models.source import resolve
    from fedlora.server.rundir import RunDirectory

    from .folders import fresh
    from .tuned import write_merged

    opened = RunDirectory.open(run)
    if opened.recipe.quantize.per_width:
        folder = fresh(destination)
        round = _export_subnet(opened, round, form, bits, subnet, folder)
        _say(form, round, folder, as_json)
        return
    if bits is not None or subnet is not None:
        raise RunError(f"{run} has one adapter for all widths; leave out --bits and --subnet")
    head = opened.head(round)
    folder = fresh(destination)
    if form == "merged":
        write_merged(opened, round, folder)
    elif head.snapshot:
        raise RunError(
            f"{run} holds folded weights in place of the first {head.snapshot.covers} residual(s), "
            "which an adapter would be made of: pull it with --form log, or export it merged"
        )
    else:
        recipe = opened.recipe
        base = require_fingerprint(resolve(recipe.model.source), head.base)
        export_adapter(base, recipe.model, head.adapter, head.residuals, recipe.lora, folder)
    _say(form, head.round, folder, as_json)


def _say(form: str, round: int, folder: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"form": form, "round": round, "destination": str(folder)}))
    else:
        typer.echo(f"{form} model of round {round}: {folder}")


def _export_subnet(
    run: "RunDirectory",
    round: int | None,
    form: str,
    bits: int | None,
    file: Path | None,
    folder: Path,
) -> int:
    """Export one subnet of a once-for-all run; returns the round."""
    from fedlora.adapters.errors import RunError
    from fedlora.models.export import export_subnet
    from fedlora.models.source import resolve
    from fedlora.server.supernets import Supernet

    from .searching import read_subnet

    if form != "merged" or (bits is None) == (file is None):
        raise RunError(
            f"{run.path} has an adapter for each width: export one subnet of it, with --form "
            "merged, and --bits for one width or --subnet for what a search has found"
        )
    supernet, recipe = Supernet(run, round), run.recipe
    widths = read_subnet(file) if file else dict.fromkeys(supernet.modules, bits or 0)
    tuned = supernet.at(widths)
    export_subnet(tuned, resolve(recipe.model.source), recipe.model, recipe.lora, folder)
    return supernet.round
