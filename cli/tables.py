"""A comparison as a person reads it."""

import json
from dataclasses import asdict
from functools import reduce
from operator import add

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .compare import FEDLORA, Comparison
from .progress import size


def show(compared: Comparison, as_json: bool) -> None:
    """Print the table of scores, the receipt, the bytes, and the question before and after."""
    if as_json:
        print(json.dumps({"event": "Comparison", **asdict(compared)}, ensure_ascii=False))
        return
    console = Console(highlight=False)
    console.print("Held-out questions answered")
    console.print(_scores(compared))
    console.print("Bytes of the whole fedlora run")
    console.print(_traffic(compared))
    console.print(f"receipt: {compared.receipt:.1e} (largest relative error of any module)\n")
    example = compared.example
    for label, text in (
        ("question", example.question),
        ("expected", " / ".join(example.answers)),
        ("before", example.before),
        ("after", example.after),
    ):
        console.print(Text(f"{label:>8}  {' '.join(text.split())}"))


def _scores(compared: Comparison) -> Table:
    sites = list(compared.scores[FEDLORA])
    table = Table()
    table.add_column("model")
    for site in (*sites, "all"):
        table.add_column(site, justify="right")
    for model, by_site in compared.scores.items():
        cells = [str(by_site[site]) for site in sites] + [str(reduce(add, by_site.values()))]
        table.add_row(model, *cells, style="bold" if model == FEDLORA else None)
    return table


def _traffic(compared: Comparison) -> Table:
    table = Table()
    table.add_column("node")
    table.add_column("up", justify="right")
    table.add_column("down", justify="right")
    for node, sent in compared.up.items():
        table.add_row(node, size(sent), size(compared.down[node]))
    return table
