"""`fedlora distill`: a smaller student, or a personal one, of the model that was received."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .options import AsJson, Round

if TYPE_CHECKING:
    from fedlora.client.distillation.order import Source, Summary
    from fedlora.recipes.schema import DataSection

EXAMPLE = "Example: fedlora distill --run runs/demo --student pruned --data mine.jsonl --out small"

DataFile = Annotated[
    Path,
    typer.Option(metavar="FILE", help="Transfer text; it stays here.", show_default=False),
]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", metavar="RUN", help="Teacher: the head of a run.", show_default=False),
]
Teachers = Annotated[
    list[str] | None,
    typer.Option("--teacher", metavar="MODEL", help="Teacher: any model.", show_default=False),
]
Format = Annotated[
    Literal["instruction", "chat", "text"] | None,
    typer.Option(help="Of the data.", show_default="the run's, or instruction"),
]
MaxLength = Annotated[int, typer.Option(min=8, help="Longest example, in tokens.")]

app = typer.Typer(
    invoke_without_command=True,
    help="Teach a smaller model what the tuned one knows.",
    epilog=EXAMPLE,
    subcommand_metavar="[advise]",
)


@app.callback(epilog=EXAMPLE)
def distill(
    context: typer.Context,
    run: RunOption = None,
    round: Round = None,
    teacher: Teachers = None,
    student: Annotated[
        str,
        typer.Option(
            metavar="pruned|lora|MODEL",
            help="Cut from the teacher, an adapter on the run's base, or a smaller model.",
        ),
    ] = "pruned",
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Transfer text; it stays here.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The student's folder; what was cut off there is gone on with.",
            show_default=False,
        ),
    ] = None,
    ratio: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Parameters of a pruned student / teacher.")
    ] = 0.4,
    rank: Annotated[
        int, typer.Option(min=0, help="Of a LoRA student.", show_default="the head's")
    ] = 0,
    dropout: Annotated[float, typer.Option(min=0.0, max=0.99, help="Likewise.")] = 0.0,
    format: Format = None,
    heldout: Annotated[
        float, typer.Option(min=0.01, max=0.9, help="Share of the data to judge by.")
    ] = 0.1,
    max_length: MaxLength = 512,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 200,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a step.")] = 8,
    learning_rate: Annotated[float, typer.Option(min=1e-7, max=1.0)] = 5e-4,
    kd: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Share of the divergence from the teacher."),
    ] = 0.5,
    temperature: Annotated[float, typer.Option(min=0.1, max=20.0)] = 1.0,
    chunk: Annotated[
        int, typer.Option(min=1, help="Tokens whose logits stand in memory at once.")
    ] = 64,
    on_policy: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of batches that the student writes.")
    ] = 0.0,
    gate: Annotated[
        bool,
        typer.Option("--gate", help="Hear a teacher only where it does better than the student."),
    ] = False,
    top_k: Annotated[
        int,
        typer.Option(min=0, help="Ask the teacher beforehand, for so many tokens; 0: as it goes."),
    ] = 0,
    teacher_precision: Annotated[
        Literal["fp32", "int8", "int4"], typer.Option(help="Of the teacher's weights.")
    ] = "fp32",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Distil a student from the head of a run, or from any model, on text of your own."""
    if context.invoked_subcommand:
        return
    if data is None or out is None:
        missing = "--data" if data is None else "--out"
        raise typer.BadParameter("is needed", param_hint=missing)
    from fedlora.client.distillation.job import distil_to
    from fedlora.client.distillation.loss import Objective
    from fedlora.client.distillation.order import Order
    from fedlora.client.distillation.training import Plan
    from fedlora.models.allocator import map_tensors
    from fedlora.models.threads import set_threads
    from fedlora.recipes.schema import TrainSection

    from .distilling import shown

    set_threads(None)
    map_tensors()
    train = TrainSection(
        steps=steps, batch_size=batch_size, learning_rate=learning_rate, max_length=max_length
    )
    objective = Objective(kd, temperature, chunk)
    order = Order(
        data=data,
        section=data_section(run, format).model_copy(update={"heldout": heldout}),
        student=student,
        plan=Plan(train, objective, on_policy=on_policy, gate=gate, seed=seed),
        ratio=ratio,
        rank=rank,
        dropout=dropout,
        top_k=top_k,
        precision=teacher_precision,
        every=every,
    )
    with shown(steps, as_json) as told:
        summary = distil_to(out, order, sources(run, round, teacher or []), told)
    _say(summary, out, as_json)


def data_section(run: Path | None, format: str | None) -> "DataSection":
    """How the transfer text is read: as the run's data, or as the user says."""
    from fedlora.recipes.schema import DataSection
    from fedlora.server.rundir import RunDirectory

    section = RunDirectory.open(run).recipe.data if run else DataSection()
    return DataSection.model_validate(section.model_dump() | ({"format": format} if format else {}))


def sources(run: Path | None, round: int | None, models: list[str]) -> "list[Source]":
    """The teachers: the run's head first, then models."""
    from fedlora.client.distillation.order import Source
    from fedlora.models.fingerprint import fingerprint
    from fedlora.models.source import resolve
    from fedlora.server.rundir import RunDirectory

    from .tuned import tuned, write_merged

    found = []
    if run is not None:
        opened = RunDirectory.open(run)
        record = opened.heads.record(round)

        def written(place: Path) -> Path:
            if not place.is_dir():
                write_merged(opened, round, place)
            return place

        found.append(Source(f"head {record.hash}", written, lambda: tuned(opened, round)))
    for model in models:
        folder = resolve(model)
        found.append(Source(f"base {fingerprint(folder)}", partial(_there, folder)))
    return found


def _there(folder: Path, place: Path) -> Path:
    return folder


def _say(summary: "Summary", out: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"event": "Distilled", **asdict(summary), "folder": str(out)}))
        return
    smaller = summary.student_parameters / summary.teacher_parameters
    typer.echo(
        f"student: {out}, {summary.student_parameters / 1e6:.1f} million parameters, "
        f"{smaller:.2f} of the teacher's; held-out loss {summary.loss_before:.4f} before, "
        f"{summary.loss_after:.4f} after {summary.steps} steps; teacher {summary.teacher_loss:.4f}"
    )
