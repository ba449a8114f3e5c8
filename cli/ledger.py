"""`fedlora ledger`: what a run's rounds say of themselves, and whether it still holds."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import AsJson, Round, RunArgument

if TYPE_CHECKING:
    from fedlora.strategies.heads import HeadStore
    from fedlora.strategies.records import HeadRecord

app = typer.Typer(
    no_args_is_help=True,
    help="Verify, list and show the rounds of a run.",
    epilog="Example: fedlora ledger verify runs/demo",
)


@app.command(epilog="Example: fedlora ledger verify runs/demo")
def verify(run: RunArgument, as_json: AsJson = False) -> None:
    """Check every record, its link to the one before, and every tensor file."""
    from fedlora.strategies.recovery import verify as check

    heads = _ledger(run)
    sound: list[int] = []

    def told(round: int) -> None:
        sound.append(round)
        if not as_json:
            typer.echo(f"round {round}: holds, head {heads.record(round).hash[:12]}")

    check(heads, told)
    head = heads.record().hash if sound else None
    if as_json:
        typer.echo(json.dumps({"rounds": sound, "head": head}))
    else:
        typer.echo(f"{len(sound)} records hold; the last head is {head}")


@app.command(epilog="Example: fedlora ledger log runs/demo")
def log(run: RunArgument, as_json: AsJson = False) -> None:
    """One line a round: its head, who was admitted and refused, and the receipt."""
    heads = _ledger(run)
    for line in map(_line, _records(heads)):
        typer.echo(json.dumps(line) if as_json else _sentence(line))


@app.command(epilog="Example: fedlora ledger show runs/demo --round 2")
def show(
    run: RunArgument,
    round: Round = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The record as it lies on disk.", show_default=False)
    ] = False,
) -> None:
    """All that the record of a round says."""
    record = _ledger(run).record(round)
    if as_json:
        typer.echo(record.to_json().decode())
        return
    how = record.proceedings
    for name, value in (
        ("run", record.run),
        ("round", record.round),
        ("head", record.hash),
        ("record", record.digest),
        ("parent", record.parent or "none"),
        ("base", record.base),
        ("adapter", record.adapter),
        ("folded", f"{len(record.history)} residuals"),
        ("recipe", how.recipe or "none"),
        ("attempt", how.attempt + 1),
        ("asked", ", ".join(how.sampled) or "nobody"),
        ("receipt", f"{how.worst_receipt:.1e}"),
    ):
        typer.echo(f"{name:>8}  {value}")
    for name, one in how.admitted.items():
        typer.echo(
            f"admitted  {name}: {one.examples} examples, weight {one.weight:.3f}, moved the model "
            f"by {one.norm:.3g}, folded weights {one.folded[:12] or 'unsaid'}"
        )
    for name, reason in how.refused.items():
        typer.echo(f" refused  {name}: {reason}")
    for name, number in how.metrics.items():
        typer.echo(f"  metric  {name}: {number:.4g}")


def _ledger(run: Path) -> "HeadStore":
    from fedlora.server.rundir import RunDirectory

    return RunDirectory.open(run).heads


def _records(heads: "HeadStore") -> Iterator["HeadRecord"]:
    return (heads.record(round) for round in heads.rounds())


def _line(record: "HeadRecord") -> dict[str, Any]:
    how = record.proceedings
    return {
        "round": record.round,
        "head": record.hash,
        "admitted": sorted(how.admitted),
        "refused": dict(how.refused),
        "receipt": how.worst_receipt,
        "loss": how.metrics.get("eval_loss"),
    }


def _sentence(line: dict[str, Any]) -> str:
    parts = [f"round {line['round']}", f"head {line['head'][:12]}"]
    if line["admitted"]:
        parts.append("from " + ", ".join(line["admitted"]))
        parts.append(f"receipt {line['receipt']:.1e}")
    if line["loss"] is not None:
        parts.append(f"held-out loss {line['loss']:.4g}")
    parts += [f"refused {name}: {reason}" for name, reason in line["refused"].items()]
    return "; ".join(parts)
