"""`fedlora pull`: takes the model of a run from its hub."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from .hubs import HubAddress, HubKeys, TokenFile, call
from .options import AsJson, ModelSource, Round

EXAMPLE = "Example: fedlora pull fed.example.org:8100 --out demo --keys pki/library"


def pull(
    address: HubAddress,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Folder to make, or of an earlier pull; only what is missing is sent.",
            show_default=False,
        ),
    ],
    round: Round = None,
    form: Annotated[
        Literal["cheapest", "log", "snapshot", "merged"],
        typer.Option(
            help="Each round's residuals, the folded weights, the cheaper of these two; or a whole "
            "model folder."
        ),
    ] = "cheapest",
    model: ModelSource = None,
    keys: HubKeys = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Take a head: as a run's folder for `generate` and `export`, or as a merged model."""
    from dataclasses import asdict

    from fedlora.client.pulling import pull as take

    from .folders import anchored
    from .hubs import bar

    with call(address, keys, token_file) as hub, bar(as_json) as told:
        pulled = take(hub, out, round, form, model=anchored(model), told=told)
    if as_json:
        typer.echo(json.dumps({**asdict(pulled), "folder": str(pulled.folder)}))
    else:
        typer.echo(
            f"{pulled.form} of round {pulled.round}, head {pulled.head[:12]}: {pulled.folder} "
            f"({pulled.received} of {pulled.size} bytes were sent)"
        )
