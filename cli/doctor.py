"""`fedlora doctor`: is this machine fit to run a federation?"""

import dataclasses
import json

import typer

from .options import AsJson

EXAMPLE = "Example: fedlora doctor"


def doctor(as_json: AsJson = False) -> None:
    """Check packages, memory, disk, devices, bundled models and the port; say how to mend each."""
    from fedlora.adapters.errors import EngineError

    from .machine import examine

    fatal = []
    for check in examine():
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
