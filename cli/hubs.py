"""How commands call a hub: the address, the keys, the token; and the bar that a pull shows."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedlora.client.hub import Hub

HubAddress = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="host:port of the hub.", show_default=False)
]
HubKeys = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        metavar="FOLDER",
        help="This party's keys: ca.crt, and what else it was given. For a hub on another machine.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="File with this party's token, if the hub asks.", show_default=False
    ),
]


@contextmanager
def call(address: str, keys: Path | None, token_file: Path | None) -> "Iterator[Hub]":
    """The hub, by what the command line says.

    Raises:
        IdentityError: if a key or the token is not as it should be, or others could listen in.
    """
    from fedlora.client.hub import Hub
    from fedlora.protos.clientkeys import ClientKeys
    from fedlora.protos.tokens import load_token

    own = ClientKeys.open(keys) if keys else None
    token = load_token(token_file) if token_file else None
    try:
        hub = Hub(address, own, token)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with hub:
        yield hub


@contextmanager
def bar(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, to be told how many bytes have come and are missing."""
    if quiet or not sys.stderr.isatty():
        yield lambda received, missing: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda received, missing: progress.update(
            task, completed=received, total=received + missing
        )
