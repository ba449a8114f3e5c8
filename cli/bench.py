"""`fedlora bench`: what this machine gets out of fedlora, measured on the user's own."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, Round, RunArgument

if TYPE_CHECKING:
    from fedlora.client.inference.rivals import Row

EXAMPLE = 'Example: fedlora bench decode runs/demo "When does the ferry leave?"'

app = typer.Typer(
    no_args_is_help=True, help="Measure on this machine, with your own model.", epilog=EXAMPLE
)


@app.callback()
def _bench() -> None:
    """Keeps `decode` a command of its own."""


@app.command(epilog=EXAMPLE)
def decode(
    run: RunArgument,
    prompts: Annotated[
        list[str],
        typer.Argument(metavar="PROMPT...", help="What to ask.", show_default=False),
    ],
    round: Round = None,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Longest answer, in tokens.")] = 128,
    as_json: AsJson = False,
) -> None:
    """Time ways to generate the same greedy text, side by side."""
    from fedlora.client.inference import Request
    from fedlora.client.inference.answers import ends
    from fedlora.client.inference.rivals import table, ways
    from fedlora.models.examples import encode_prompt
    from fedlora.server.rundir import RunDirectory

    from .tuned import tuned

    opened = RunDirectory.open(run)
    model, tokenizer = tuned(opened, round)
    encoded = [encode_prompt(tokenizer, one, opened.recipe.data.format) for one in prompts]
    request = Request(max_new_tokens, frozenset(ends(model, tokenizer)))
    with ways(model) as found:
        for way in found.values():
            way(encoded[0], Request(4))  # the first call of anything is slow
        timed = {name: [way(prompt, request) for prompt in encoded] for name, way in found.items()}
    rows = table(timed)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(asdict(row)))
    else:
        _show(rows)


def _show(rows: "list[Row]") -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table()
    shown.add_column("way")
    for title in ("tokens/s", "ratio", "quartiles", "tokens/pass", "identical", "near ties"):
        shown.add_column(title, justify="right")
    for row in rows:
        shown.add_row(
            row.way,
            f"{row.tokens_per_second:.1f}",
            f"{row.ratio:.2f}",
            f"{row.lower:.2f} to {row.upper:.2f}",
            f"{row.tokens_per_pass:.2f}",
            f"{row.identical:.0%}",
            str(row.near_ties),
        )
    Console(highlight=False).print(shown)
