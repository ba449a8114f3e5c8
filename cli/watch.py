"""`fedlora watch`: tells of each new head of a run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from .hubs import HubAddress, HubKeys, TokenFile, call
from .options import AsJson

EXAMPLE = "Example: fedlora watch fed.example.org:8100 --keys pki/library --pull demo"


def watch(
    address: HubAddress,
    into: Annotated[
        Path | None,
        typer.Option(
            "--pull",
            metavar="FOLDER",
            help="Take each head into this folder.",
            show_default=False,
        ),
    ] = None,
    keys: HubKeys = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print a line for the latest head, and for each new one, until stopped."""
    with call(address, keys, token_file) as hub:
        for news in hub.watch():
            metrics = dict(sorted(news.metrics.items()))
            if as_json:
                known = {"round": news.round, "head": news.head, "nodes": news.nodes}
                typer.echo(json.dumps({**known, "receipt": news.receipt, "metrics": metrics}))
            else:
                shown = "".join(f"  {name} {value:.4g}" for name, value in metrics.items())
                typer.echo(
                    f"round {news.round}  head {news.head[:12]}  {news.nodes} nodes  "
                    f"receipt {news.receipt:.0e}{shown}"
                )
            if into is not None:
                from fedlora.client.pulling import pull

                pull(hub, into, news.round)
