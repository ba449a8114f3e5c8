"""`fedlora doctor`: is this machine fit to run a federation?"""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson

EXAMPLE = "Example: fedlora doctor"


def doctor(
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Check this folder of `fedlora keys` too.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check packages, memory, disk, devices, bundled models and the port; say how to mend each."""
    from fedlora.adapters.errors import EngineError

    from .key_checks import examine_keys
    from .machine import examine

    fatal = []
    for check in itertools.chain(examine(), examine_keys(keys) if keys else ()):
        if as_json:
            typer.echo(json.dumps(dataclasses.asdict(check), ensure_ascii=False))
        else:
            mark, colour = ("ok", "green") if not check.problem else ("!!", "yellow")
            typer.secho(f"{mark}  {check.name:<9}", fg=colour, nl=False)
            typer.echo(check.found + (f"\n    -> {check.problem}" if check.problem else ""))
        if check.fatal:
            fatal.append(check.name)
    if fatal:
        raise EngineError(
            f"nothing can run on this machine before this is mended: {', '.join(fatal)}"
        )
