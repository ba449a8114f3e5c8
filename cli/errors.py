"""How every command ends: one clear message on stderr and a documented exit code."""

import json
from types import FrameType
from typing import Any

import click
import typer
from typer.core import TyperGroup

INTERRUPTED = 130
TERMINATED = 143

# Written out, because the tree of exceptions lies beside torch, which `--help` must not load;
# a test holds both equal.
EXIT_CODES = {
    0: "Done.",
    1: "A defect of fedlora: please report the traceback.",
    2: "The command line is wrong.",
    3: "A recipe, an option or an override is wrong.",
    4: "A data file is missing, empty, or not in the declared format.",
    5: "A model cannot be found, loaded, or used for the task.",
    6: "Two parties hold different frozen base weights.",
    7: "LoRA factors do not fit each other, their module, or their name.",
    8: "A message or tensor payload is malformed, altered, or too large.",
    9: "Too few nodes came, or answered, within the deadline.",
    10: "A process of the federation could not be started, or died.",
    11: "A run directory is missing, in use, or not what was expected.",
    12: "A key, certificate or signature is missing, expired, or another party's.",
    INTERRUPTED: "Interrupted by Ctrl-C.",
    TERMINATED: "Ended by SIGTERM.",
}

_AS_JSON = "fedlora.cli.json"
_interrupts: list[int] = []


class Commands(TyperGroup):
    """The root group: turns errors that a user can mend into a message, without a traceback.

    Anything else is a defect of fedlora, and its traceback is what a report of it needs.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Notice `--json` before anything can fail; `meta` is shared with the subcommands."""
        ctx.meta[_AS_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; `typer.Exit` carries the exit code on."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if not ctx.meta[_AS_JSON]:
                raise
            _end(ctx, "UsageError", error.format_message(), error.exit_code)
        except KeyboardInterrupt:
            _end(ctx, "KeyboardInterrupt", "interrupted", INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if _interrupts:  # a library may turn an interrupt into an error of its own
                _end(ctx, "KeyboardInterrupt", "interrupted", INTERRUPTED)
            from fedlora.adapters.errors import FedloraError

            if not isinstance(error, FedloraError):
                raise
            _end(ctx, type(error).__name__, str(error), error.exit_code)


def interrupted(number: int, frame: FrameType | None) -> None:
    """What Ctrl-C does: a KeyboardInterrupt that is remembered."""
    _interrupts.append(number)
    raise KeyboardInterrupt


def _end(ctx: click.Context, kind: str, message: str, exit_code: int) -> None:
    if ctx.meta[_AS_JSON]:
        report = {"error": kind, "message": message, "exit_code": exit_code}
        typer.echo(json.dumps(report, ensure_ascii=False), err=True)
    elif exit_code == INTERRUPTED:
        typer.echo(message, err=True)
    else:
        typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
        typer.echo(message, err=True)
    ctx.exit(exit_code)
