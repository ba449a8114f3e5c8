"""A distillation from its order to the student's folder, in steps that can be interrupted."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from fedlora.adapters import DataError
from fedlora.models.cache import published
from fedlora.models.evaluation import evaluate
from fedlora.models.examples import encode
from fedlora.models.files import read_rows
from fedlora.models.loading import load_tokenizer
from fedlora.models.quiet import quiet
from fedlora.models.rows import Row

from ..data import split
from .checkpoints import METRICS, Checkpoints
from .lessons import Lesson, Texts, count, personal, whole
from .order import PERSONAL, Order, Source, Summary, Told
from .training import ORDER, distil
from .workplace import workplace

REPORT = "distillation.json"


def distil_to(
    destination: Path, order: Order, teachers: Sequence[Source], told: Told | None = None
) -> Summary:
    """Make a student, train it, and write its folder, for transformers to open.

    Args:
        destination: a new or empty folder; work goes on beside it, in `DESTINATION.partial`, and
            the same call goes on with what an interrupted one left there.
        order: what is wanted.
        teachers: the first is what a student is pruned from.
        told: who hears of it.

    Raises:
        RecipeError: if parts of the order contradict each other.
        DataError: if there is nothing to learn from, or nothing to judge by.
        ModelError: if teacher and student don't fit each other, or memory.
        RunError: if `destination` is taken, or the work there was begun with another order.
    """
    told = told or Told()
    order.check(teachers)
    rows = read_rows(order.data, order.section)
    if len(rows) < 2:
        raise _too_few(order, len(rows))
    with workplace(destination, order.facts(teachers)) as work:
        lesson, tokens, texts = _prepared(order, teachers, rows, work, told)
        told.notice(
            f"{len(texts.train)} examples to learn from, {len(texts.heldout)} held out; held-out "
            f"loss of the teacher {lesson.teacher_loss:.4f}, of the student before training "
            f"{lesson.student_loss:.4f}"
        )
        checkpoints = Checkpoints(work, order.every)
        distil(lesson.student, lesson.teachers, texts.train, order.plan, checkpoints, told.step)
        report = evaluate(lesson.student, texts.heldout, order.plan.train.batch_size)
        student = lesson.finished()
        summary = Summary(
            teacher_parameters=lesson.teacher_parameters,
            student_parameters=count(student),
            teacher_loss=lesson.teacher_loss,
            loss_before=lesson.student_loss,
            loss_after=report.loss,
            steps=order.plan.train.steps,
            labels=report.tokens,
        )
        with published(destination) as fresh:
            with quiet():
                student.save_pretrained(fresh)
                tokens.save_pretrained(fresh)
            shutil.copy(work / METRICS, fresh / METRICS)
            facts = {"summary": asdict(summary), "order": order.facts(teachers)}
            (fresh / REPORT).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return summary


def _prepared(
    order: Order, teachers: Sequence[Source], rows: Sequence[Row], work: Path, told: Told
) -> tuple[Lesson, PreTrainedTokenizerBase, Texts]:
    """What is needed to begin, or to go on."""
    if order.student == PERSONAL:
        [source] = teachers
        assert source.adapted is not None
        model, tokens = source.adapted()
        texts = _texts(order, rows, tokens)
        return personal(order, model, texts), tokens, texts
    folders = [one.folder(work / f"model-{i}") for i, one in enumerate(teachers, start=1)]
    tokens = load_tokenizer(folders[0])
    texts = _texts(order, rows, tokens)
    return whole(order, folders, texts, work, told), tokens, texts


def _texts(order: Order, rows: Sequence[Row], tokens: PreTrainedTokenizerBase) -> Texts:
    examples = encode(rows, tokens, order.plan.train.max_length).examples
    train, heldout = split(examples, order.section.heldout, order.plan.seed, ORDER)
    if not train or not heldout:
        raise _too_few(order, len(examples))
    return Texts(train, heldout)


def _too_few(order: Order, examples: int) -> DataError:
    return DataError(
        f"{order.data}: {examples} example(s) are too few to learn from some and judge by others; "
        "add examples, or hold out another share"
    )
