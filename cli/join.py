"""`fedlora join`: this machine as a node, with data that stays on it."""

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, ModelSource

EXAMPLE = (
    "Example: fedlora join fed.example.org:8000 --name clinic --data notes.jsonl --keys pki/clinic"
)


def join(
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="host:port of the coordinator.", show_default=False),
    ],
    name: Annotated[str, typer.Option(help="Name of this node.", show_default=False)],
    data: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Private data: JSONL, CSV, Parquet, or a saved Hugging Face dataset.",
            show_default=False,
        ),
    ],
    heldout: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Evaluation data, instead of a share of the private data.",
            show_default=False,
        ),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where this node keeps its state.",
            show_default="~/.local/state/fedlora/<name>",
        ),
    ] = None,
    model: ModelSource = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads to train with.", show_default="all cores"),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="This node's keys; needed to call another machine.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train with a coordinator's federation until its run is done."""
    from pydantic import ValidationError

    from fedlora.adapters.errors import DataError, IdentityError
    from fedlora.protos.addresses import is_loopback, split
    from fedlora.protos.keys import NodeKeys
    from fedlora.recipes.schema import NodeSection

    try:
        host, _ = split(address)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        NodeSection(name=name, data=str(data))
    except ValidationError:
        allowed = "up to 64 letters, digits, '.', '_' and '-', the first a letter or digit"
        raise typer.BadParameter(f"--name {name!r}: expected {allowed}") from None
    for option, path in (("--data", data), ("--heldout", heldout)):
        if path is not None and not path.exists():
            raise DataError(f"{option}: no such file: {path.absolute()}")
    if keys is None and not is_loopback(host):
        raise IdentityError(
            f"{host} is another machine, and without keys anyone between could read and change "
            "what is sent: make keys with `fedlora keys node` and name their folder with --keys"
        )
    own = NodeKeys.open(keys) if keys else None
    if own is not None and own.name != name:
        raise IdentityError(f"--name {name}: the keys in {own.folder} are those of {own.name}")

    from . import engines
    from .folders import anchored
    from .progress import progress

    source = anchored(model)
    with progress(as_json) as listener:
        engines.join(address, name, data, heldout, state_dir, threads, source, own, listener)
