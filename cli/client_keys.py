"""`fedlora keys client`: lets a party that doesn't train call the hub."""

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson

EXAMPLE = (
    "Example: fedlora keys client library --ca pki/ca --coordinator pki/coordinator "
    "--out pki/library"
)


def client(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the party.")],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FOLDER", help="Where to make them.", show_default=False),
    ],
    ca: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The authority's folder.", show_default=False)
    ],
    coordinator: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The coordinator's folder, to copy the key that checks what the hub offers.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long the certificate is valid.")] = 365,
    as_json: AsJson = False,
) -> None:
    """Make the certificate of a party that takes the model from the hub."""
    from fedlora.protos.clientkeys import make_client
    from fedlora.protos.keys import AuthorityKeys

    keys = make_client(out, AuthorityKeys.open(ca), name, days, coordinator)
    until = keys.expires["client.crt"].date().isoformat()
    if as_json:
        typer.echo(json.dumps({"folder": str(out), "name": name, "expires": until}))
    else:
        typer.echo(f"{out}: the certificate of {name}, valid until {until}; give it to {name}")
