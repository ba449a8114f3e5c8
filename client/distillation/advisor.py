"""Which teacher? Candidates in, a ranked table out, and for each row what decided it.

Gates first (`eligibility`), then measurement on the text at hand: a teacher's own loss there says
more of what a student will learn than its size does (Busbridge et al., ICML 2025, arXiv
2502.08606). The law of capacity gap is a prior, which decides between teachers that measure alike.
Short pilot runs, if somebody pays for them, overrule both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

import psutil
import torch
from transformers import PreTrainedModel

from fedlora.adapters import DataError, ModelError
from fedlora.models.evaluation import evaluate
from fedlora.models.examples import Example
from fedlora.models.loading import load_base
from fedlora.recipes.schema import ModelSection

from .capacity import NotIdentified, Point, Vertex, law_distance, law_holds, law_teacher, vertex
from .comparison import BATCH, Measured, compare
from .eligibility import Described, describe, memory_need, require_fit

ALIKE = 0.01  # nats a label: losses nearer than this don't decide

Pilot = Callable[[PreTrainedModel, int], float]
Decider = Literal["gate", "prior", "measurement", "pilot"]


@dataclass(frozen=True)
class Candidate:
    """A teacher to consider.

    Attributes:
        name: for the table.
        source: bundled alias, folder, GGUF file, or hub name.
    """

    name: str
    source: str


@dataclass(frozen=True)
class Budget:
    """What a distillation may cost.

    Attributes:
        tokens: that it will process.
        memory: bytes; None for what is free now.
        chunk: label tokens whose logits stand in memory at once.
        licences: allowed for a teacher; none given allows any.
    """

    tokens: int
    memory: int | None = None
    chunk: int = 64
    licences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A candidate in the table.

    Attributes:
        name: the candidate's; likewise `source`.
        source: see there.
        rank: from 1; None if the candidate is refused.
        reason: for the rank or the refusal.
        decided_by: what the reason rests on.
        parameters: of the teacher, where known.
        licence: named by its files.
        law_distance: |ln(N / T)| to the law's size, where the law says anything.
        measured: on the transfer text; None if a gate was closed.
        pilot_losses: of students in short runs, one a seed.
        flops: of the distillation, 6 N_S D + 2 N_T D.
        memory: bytes of the distillation.
    """

    name: str
    source: str
    rank: int | None
    reason: str
    decided_by: Decider
    parameters: int | None = None
    licence: str | None = None
    law_distance: float | None = None
    measured: Measured | None = None
    pilot_losses: tuple[float, ...] = ()
    flops: float | None = None
    memory: int | None = None


@dataclass(frozen=True)
class Advice:
    """The answer.

    Attributes:
        student_parameters: of the student.
        student_loss: before training, on the transfer text, in nats per label.
        law_size: the law's teacher, in parameters; None if it says nothing of such a student.
        law_holds: whether the law was tried on students of this size.
        rows: ranked, best first, then the refused in their order.
        vertex: fitted to the pilot runs; None without them.
    """

    student_parameters: int
    student_loss: float
    law_size: float | None
    law_holds: bool
    rows: tuple[Row, ...]
    vertex: Vertex | NotIdentified | None


def advise(
    student_source: str,
    candidates: Sequence[Candidate],
    examples: Sequence[Example],
    budget: Budget,
    generator: torch.Generator,
    pilot: Pilot | None = None,
    seeds: Sequence[int] = (0, 1, 2),
) -> Advice:
    """Rank teachers for a student. One of them is in memory at a time, beside the student.

    Args:
        student_source: bundled alias, folder, GGUF file, or hub name.
        candidates: at least one.
        examples: of the transfer text, in the student's tokens.
        budget: bounds and amounts.
        generator: draws for the vertex's interval.
        pilot: distils from a teacher with a seed, for a short while, and returns the student's
            held-out loss.
        seeds: that it is run with.

    Raises:
        DataError: without examples.
        ModelError: if the student can't be opened. A candidate that can't is refused in its row.
    """
    if not examples:
        raise DataError(
            "the transfer set is empty: advice rests on how well teachers predict it; "
            "expected at least one example"
        )
    memory = psutil.virtual_memory().available if budget.memory is None else budget.memory
    student = describe(student_source)
    model = load_base(student.folder, ModelSection(source=student_source))
    loss = evaluate(model, examples, BATCH).loss
    size = student.parameters
    rows = []
    for candidate in candidates:
        row = Row(candidate.name, candidate.source, None, "", "gate")
        try:
            teacher = describe(candidate.source)
            row = _described(row, teacher, student, budget)
            require_fit(teacher, student, row.memory or 0, memory, budget.licences)
            opened = load_base(teacher.folder, ModelSection(source=candidate.source))
        except ModelError as error:
            rows.append(replace(row, reason=str(error)))
            continue
        rows.append(_judged(row, opened, model, examples, pilot, seeds))
        del opened
    curve = None
    if pilot:
        tried = [row for row in rows if row.pilot_losses]
        curve = vertex([Point(row.parameters or 0, row.pilot_losses) for row in tried], generator)
    return Advice(size, loss, law_teacher(size), law_holds(size), tuple(_ranked(rows)), curve)


def _described(row: Row, teacher: Described, student: Described, budget: Budget) -> Row:
    return replace(
        row,
        parameters=teacher.parameters,
        licence=teacher.licence,
        law_distance=law_distance(teacher.parameters, student.parameters),
        flops=float((6 * student.parameters + 2 * teacher.parameters) * budget.tokens),
        memory=memory_need(teacher, student, budget.chunk),
    )


def _judged(
    row: Row,
    teacher: PreTrainedModel,
    student: PreTrainedModel,
    examples: Sequence[Example],
    pilot: Pilot | None,
    seeds: Sequence[int],
) -> Row:
    """Measured, refused if it knows no more than the student, and else tried."""
    found = compare(teacher, student, examples)
    row = replace(row, measured=found, decided_by="measurement")
    losses = f"its loss on this text is {found.teacher_loss:.3f}, the student's"
    if found.teacher_loss >= found.student_loss:
        return replace(
            row,
            reason=f"the teacher is not better on this text: {losses} {found.student_loss:.3f} "
            "before any training; tune the teacher on such text first",
        )
    reason = f"{losses} {found.student_loss:.3f}"
    if pilot is None:
        return replace(row, rank=0, reason=reason)
    tried = tuple(pilot(teacher, seed) for seed in seeds)
    reason = f"students of {len(tried)} short run(s) end at a loss of {fmean(tried):.3f}"
    return replace(row, rank=0, reason=reason, decided_by="pilot", pilot_losses=tried)


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """The accepted (those with a rank) in their order, then the refused."""
    accepted = [row for row in rows if row.rank is not None]
    if any(row.pilot_losses for row in accepted):
        ordered = sorted(accepted, key=lambda row: fmean(row.pilot_losses))
    else:
        ordered = [row for alike in _alike(accepted) for row in alike]
    numbered = [replace(row, rank=place) for place, row in enumerate(ordered, start=1)]
    return numbered + [row for row in rows if row.rank is None]


def _alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Groups of like loss, best first; within one, by the distance to the law's size."""
    groups: list[list[Row]] = []
    for row in sorted(rows, key=_loss):
        if groups and _loss(row) - _loss(groups[-1][0]) < ALIKE:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [_by_law(group) for group in groups]


def _by_law(rows: list[Row]) -> list[Row]:
    if len(rows) == 1 or any(row.law_distance is None for row in rows):
        return rows
    return [
        replace(
            row,
            decided_by="prior",
            reason=f"{row.reason}; as another's is within {ALIKE} of it, the distance to the law's "
            f"size decides: {row.law_distance:.2f}",
        )
        for row in sorted(rows, key=lambda row: row.law_distance or 0.0)
    ]


def _loss(row: Row) -> float:
    assert row.measured is not None
    return row.measured.teacher_loss
