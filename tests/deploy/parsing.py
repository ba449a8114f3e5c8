"""Command lines, parsed by the program that they are for."""

from collections.abc import Sequence

import click
import typer

from fedlora.cli.main import app


def parse(arguments: Sequence[str]) -> None:
    """See that `fedlora` takes these arguments; nothing is run.

    Raises:
        click.UsageError: if it doesn't.
    """
    command: click.Command = typer.main.get_command(app)
    rest = list(arguments)
    while isinstance(command, click.Group):
        if command.invoke_without_command and rest[:1] and rest[0].startswith("-"):
            break
        name = rest.pop(0)
        assert name in command.commands, f"{name} is no command of {command.name}"
        command = command.commands[name]
    assert not command.make_context(command.name, rest).args
