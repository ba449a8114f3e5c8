"""`fedlora join`: this machine as a node, with data that stays on it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, ModelSource

if TYPE_CHECKING:
    from pydantic import ValidationError

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
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="fp32|int8|int4|int3|int2",
            help="How the frozen base is held here: less memory, the same federation.",
            show_default="fp32",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Instead of --precision: memory for training, e.g. 900MB; what fits is chosen.",
            show_default=False,
        ),
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
    from fedlora.client.place import NodePlace
    from fedlora.protos.addresses import is_loopback, split
    from fedlora.protos.keys import NodeKeys
    from fedlora.recipes.schema import NodeSection

    try:
        host, _ = split(address)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        section = NodeSection.model_validate(
            {"name": name, "data": str(data), "precision": precision, "memory": memory}
        )
    except ValidationError as error:
        raise typer.BadParameter(_mended(error)) from None
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
    from .supernode import default_state

    place = NodePlace(
        section.name,
        data.absolute(),
        heldout.absolute() if heldout else None,
        (state_dir or default_state(name)).absolute(),
        threads,
        anchored(model),
        own.folder if own else None,
        section.precision,
        section.memory,
    )
    with progress(as_json) as listener:
        engines.join(address, place, own, listener)


def _mended(error: "ValidationError") -> str:
    """What is wrong with an option, and what was expected."""
    wrong = error.errors()[0]
    option = str(wrong["loc"][0]) if wrong["loc"] else ""
    expected = {
        "name": "up to 64 letters, digits, '.', '_' and '-', the first a letter or digit",
        "precision": "fp32, int8, int4, int3 or int2",
        "memory": "a number and a unit, such as 900MB or 2.6GB",
    }.get(option)
    if expected is None:
        return "give --precision or --memory, not both"
    return f"--{option} {wrong['input']!r}: expected {expected}"
