"""`fedlora hub`: gives out the heads of a run to parties that don't train."""

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, RunArgument

EXAMPLE = "Example: fedlora hub runs/demo --host 0.0.0.0 --keys pki/coordinator --tokens tokens"


def hub(
    run: RunArgument,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8100,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The coordinator's keys, for TLS; without them, only on this machine.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A line NAME TOKEN for each party that may call.",
            show_default="each shows a certificate",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve a run's heads, also while its coordinator makes new ones."""
    import asyncio

    from fedlora.protos.keys import CoordinatorKeys
    from fedlora.server.hosting import serve
    from fedlora.server.rundir import RunDirectory

    opened = RunDirectory.open(run)

    def ready(address: str) -> None:
        said = json.dumps({"address": address}) if as_json else f"{opened.recipe.name}: {address}"
        typer.echo(said)

    own = CoordinatorKeys.open(keys) if keys else None
    asyncio.run(serve(opened, host, port, own, tokens, ready))
