"""`fedlora subnet`: which widths to use a run's model at, once it was trained over all of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, RunArgument

if TYPE_CHECKING:
    from .searching import Budget, Supernet

app = typer.Typer(
    no_args_is_help=True,
    help="Find the best model of a size among the subnets of a run.",
    epilog="Example: fedlora subnet search runs/mixed --bits 4.5",
)


@app.command(epilog="Example: fedlora subnet search runs/mixed --bits 4.5")
def search(
    run: RunArgument,
    bits: Annotated[
        float | None,
        typer.Option(min=1.0, help="Bits that a weight may have on average.", show_default=False),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory that the weights may take, as in 2.6GB.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Text to score subnets on: not what they are judged by afterwards.",
            show_default="the run's held-out data",
        ),
    ] = None,
    evaluations: Annotated[
        int, typer.Option(min=8, help="How many subnets to score at most.")
    ] = 150,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where to; a search that was cut off there is gone on with.",
            show_default="RUN/subnets/BUDGET",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for the subnet of lowest held-out loss within a budget.

    The subnets of one width stand beside it. Writes subnet.json, search.json and pareto.svg.
    """
    from rich.console import Console
    from rich.progress import Progress

    from .searching import find, summary, table

    limit = budget_of(bits, budget)
    folder = out or run / "subnets" / str(limit).replace(" ", "-")
    supernet = open_supernet(run, data)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("subnets scored", total=evaluations)
        result = find(
            supernet,
            limit,
            evaluations,
            folder,
            lambda result: bar.update(task, completed=len(result.points)),
        )
    if as_json:
        typer.echo(json.dumps({**summary(supernet, result.best), "folder": str(folder)}))
        return
    console = Console(highlight=False)
    console.print(table(supernet, result, limit))
    console.print(f"{len(result.points)} subnets scored: {folder}", soft_wrap=True)


def budget_of(bits: float | None, budget: str | None) -> "Budget":
    """The budget that was asked for.

    Raises:
        BadParameter: if it is given in both units, in none, or is no size.
    """
    from fedlora.recipes.sizes import parse_size

    from .searching import Budget

    if bits is not None and budget is None:
        return Budget(bits, "bits")
    if budget is not None and bits is None:
        try:
            return Budget(parse_size(budget), "bytes")
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--budget") from None
    raise typer.BadParameter("give either --bits or --budget", param_hint="--bits / --budget")


def open_supernet(run: Path, data: Path | None) -> "Supernet":
    """The head of a run, at all the widths that it was trained at.

    Raises:
        RunError: if there is no run.
        ModelError: if it has one adapter for all widths.
        DataError: if there is nothing to score on.
    """
    import hashlib

    from fedlora.adapters.errors import DataError
    from fedlora.models.evaluation import evaluate
    from fedlora.models.examples import encode
    from fedlora.models.files import read_rows
    from fedlora.models.subnet import Subnet
    from fedlora.server import supernets as head_of_run
    from fedlora.server.rundir import RunDirectory

    from .searching import Supernet

    opened = RunDirectory.open(run)
    recipe, head = opened.recipe, head_of_run.Supernet(opened)
    path = data or (Path(recipe.evaluate.data) if recipe.evaluate.data else None)
    if path is None:
        raise DataError(f"{run} has no evaluation data of its own: name a file with --data")
    rows = read_rows(path, recipe.data)
    tokenizer, most = head.model.tokenizer, recipe.train.max_length
    examples = encode(rows, tokenizer, most, recipe.model.labels).examples
    shapes = head.shapes

    def nbytes(assignment: Mapping[str, int]) -> float:
        return Subnet(assignment).weight_bytes(shapes, recipe.quantize.group)

    def loss(assignment: Mapping[str, int]) -> float:
        return evaluate(head.at(assignment), examples, recipe.evaluate.batch_size).loss

    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    subject = f"head {head.head[:16]} on {path.name} {digest[:16]}"
    return Supernet(subject, head.modules, head.widths, nbytes, loss, recipe.seed)
