"""The entry of `fedlora`: which commands there are, in which order and group."""

import signal
import sys
from importlib.metadata import version
from types import FrameType
from typing import Annotated

import typer

from . import (
    advise,
    bench,
    client_keys,
    config,
    coordinator,
    distill,
    doctor,
    export,
    generate,
    hub,
    join,
    keys,
    ledger,
    pull,
    recipes,
    simulate,
    subnet,
    watch,
)
from .errors import EXIT_CODES, TERMINATED, Commands, interrupted

RUN, USE, KNOW = "Run a federation", "Use the tuned model", "Recipes and machine"

app = typer.Typer(
    cls=Commands,
    name="fedlora",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="\n\n".join(
        ["Exit codes:", *(f"{code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())]
    ),
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedlora {version('fedlora')}")
        raise typer.Exit


@app.callback()
def _fedlora(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Fine-tune one language model on text that stays where it is.

    Every node trains LoRA factors on its own data; the coordinator averages them exactly.
    Begin with [bold]fedlora doctor[/bold], then [bold]fedlora simulate demo[/bold].
    """


for _module, _panel in (
    (simulate, RUN),
    (coordinator, RUN),
    (join, RUN),
    (hub, RUN),
    (pull, USE),
    (watch, USE),
    (generate, USE),
    (export, USE),
    (doctor, KNOW),
):
    _name = _module.__name__.rpartition(".")[2]
    app.command(_name, rich_help_panel=_panel, epilog=_module.EXAMPLE)(getattr(_module, _name))
app.add_typer(ledger.app, name="ledger", rich_help_panel=RUN)
keys.app.command("client", epilog=client_keys.EXAMPLE)(client_keys.client)
app.add_typer(keys.app, name="keys", rich_help_panel=RUN)
distill.app.command("advise", epilog=advise.EXAMPLE)(advise.advise)
app.add_typer(distill.app, name="distill", rich_help_panel=USE)
app.add_typer(subnet.app, name="subnet", rich_help_panel=USE)
app.add_typer(recipes.app, name="recipes", rich_help_panel=KNOW)
app.add_typer(bench.app, name="bench", rich_help_panel=KNOW)
app.add_typer(config.app, name="config", rich_help_panel=KNOW)


def main() -> None:
    """What the installed script calls."""
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGINT, interrupted)
    app()


def _terminated(number: int, frame: FrameType | None) -> None:
    """End as by an exception, so that child processes are stopped and files are closed."""
    sys.exit(TERMINATED)


if __name__ == "__main__":
    main()
