"""`fedlora distill advise`: which teacher is worth it for a student, on one's own text."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .distill import DataFile, Format, MaxLength, RunOption, Teachers, data_section
from .options import AsJson, Round

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from fedlora.client.distillation.advisor import Advice, Candidate, Pilot, Row
    from fedlora.models.examples import Example

EXAMPLE = "Example: fedlora distill advise --run runs/demo --student smollm2-135m --data mine.jsonl"
HEAD = "head of the run"


def advise(
    student: Annotated[
        str, typer.Option(metavar="MODEL", help="The student to be.", show_default=False)
    ],
    data: DataFile,
    run: RunOption = None,
    round: Round = None,
    teacher: Teachers = None,
    format: Format = None,
    max_length: MaxLength = 512,
    examples: Annotated[int, typer.Option(min=2, help="Of the data, to measure on.")] = 64,
    tokens: Annotated[
        int, typer.Option(min=1, help="That the distillation will process, for its cost.")
    ] = 1_000_000,
    pilot: Annotated[
        int, typer.Option(min=0, help="Steps of short runs with each teacher; 0: none.")
    ] = 0,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="That may be used, as in 8GB.", show_default="what is free"
        ),
    ] = None,
    licence: Annotated[
        list[str] | None,
        typer.Option(help="Allow teachers of this licence alone.", show_default="any"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Rank teachers for a student, and say for each what decided it."""
    import tempfile

    from fedlora.adapters.errors import RecipeError
    from fedlora.client.distillation.advisor import Budget, Candidate, advise
    from fedlora.models.batches import generator
    from fedlora.models.examples import encode
    from fedlora.models.files import read_rows
    from fedlora.models.loading import load_tokenizer
    from fedlora.models.source import resolve
    from fedlora.models.threads import set_threads
    from fedlora.recipes.sizes import parse_size

    set_threads(None)
    try:
        allowed = parse_size(memory) if memory else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--memory") from None
    rows = read_rows(data, data_section(run, format))
    encoded = encode(rows, load_tokenizer(resolve(student)), max_length).examples
    with tempfile.TemporaryDirectory(prefix="fedlora-advise-") as scratch:
        found = [Candidate(name, name) for name in teacher or ()]
        if run is not None:
            found.insert(0, _head(run, round, Path(scratch)))
        if not found:
            raise RecipeError("advice needs a teacher to judge: name a run or a model")
        budget = Budget(tokens, allowed, licences=tuple(licence or ()))
        parts = student, found, encoded[:examples], budget, generator(seed, "advise")
        advice = advise(*parts, _pilot(student, encoded, pilot) if pilot else None)
    _say(advice, as_json)


def _head(run: Path, round: int | None, scratch: Path) -> "Candidate":
    from fedlora.client.distillation.advisor import Candidate
    from fedlora.server.rundir import RunDirectory

    from .tuned import write_merged

    write_merged(RunDirectory.open(run), round, scratch / "head")
    return Candidate(HEAD, str(scratch / "head"))


def _pilot(student: str, examples: "Sequence[Example]", steps: int) -> "Pilot":
    """Distils for a few steps, and gives the loss on text that was held out."""
    from fedlora.client.data import split
    from fedlora.client.distillation.teachers import ModelTeacher
    from fedlora.client.distillation.training import Plan, distil
    from fedlora.models.evaluation import evaluate
    from fedlora.models.loading import load_base
    from fedlora.models.source import resolve
    from fedlora.recipes.schema import ModelSection, TrainSection

    train = TrainSection(steps=steps, batch_size=4, learning_rate=5e-4)

    def tried(teacher: "PreTrainedModel", seed: int) -> float:
        learned, heldout = split(tuple(examples), 0.2, seed, "pilot")
        own = load_base(resolve(student), ModelSection(source=student))
        distil(own, [ModelTeacher(teacher)], learned, Plan(train, seed=seed))
        return evaluate(own, heldout, train.batch_size).loss

    return tried


def _say(advice: "Advice", as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    if as_json:
        for row in advice.rows:
            typer.echo(json.dumps(asdict(row)))
        rest = asdict(advice)
        del rest["rows"]
        typer.echo(json.dumps(rest))
        return
    shown = Table()
    for title in ("", "teacher", "decided by", "why"):
        shown.add_column(title)
    for title in ("millions", "KL", "same first", "TFLOP", "GB"):
        shown.add_column(title, justify="right")
    for row in advice.rows:
        shown.add_row(*_cells(row))
    console = Console(highlight=False)
    console.print(shown)
    size = f"{advice.student_parameters / 1e6:.1f} million parameters"
    console.print(f"student: {size}, loss {advice.student_loss:.4f} before training")
    if advice.law_size:
        reach = "" if advice.law_holds else ", beyond the sizes that it was fitted on"
        console.print(
            f"law of capacity gap: a teacher of {advice.law_size / 1e6:.0f} million{reach}"
        )
    if advice.vertex:
        console.print(f"pilot runs: {advice.vertex}")


def _cells(row: "Row") -> list[str]:
    measured = row.measured
    return [
        str(row.rank or "-"),
        row.name,
        row.decided_by,
        row.reason,
        f"{row.parameters / 1e6:.1f}" if row.parameters else "",
        f"{measured.divergence:.3f}" if measured else "",
        f"{measured.agreement:.0%}" if measured else "",
        f"{row.flops / 1e12:.0f}" if row.flops else "",
        f"{row.memory / 1e9:.1f}" if row.memory else "",
    ]
