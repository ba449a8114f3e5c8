"""Student and teachers, brought together: opened, compared, and ready to begin."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import nn

from fedlora.adapters import ModelError
from fedlora.models.evaluation import evaluate
from fedlora.models.examples import Example
from fedlora.models.loading import empty_base, load_base, load_tokenizer
from fedlora.models.lora import NAME, lora_layers
from fedlora.models.pooled import group_of
from fedlora.models.quantized_base import open_quantized, quantized_base
from fedlora.models.quiet import quiet
from fedlora.models.source import resolve
from fedlora.recipes.schema import LoraSection, ModelSection, QuantizeSection

from .order import PRUNED, Order, Told
from .personal import add_student, lora_config, merge_student
from .pruning import importance, prune
from .room import need, require_room
from .shapes import shape_for
from .stored import StoredTeacher, store
from .teachers import AdapterTeacher, ModelTeacher, Teacher, teaching
from .vocabulary import require_same_vocabulary
from .workplace import step

CALIBRATION = 64  # examples that importance is measured on
WIDTHS: dict[str, int] = {"int8": 8, "int4": 4}
LOSS = "loss.json"


@dataclass(frozen=True)
class Texts:
    """Examples to learn from, and those that are held out."""

    train: Sequence[Example]
    heldout: Sequence[Example]


@dataclass(frozen=True, eq=False)
class Lesson:
    """All that training needs.

    Attributes:
        student: with the parameters that train.
        teachers: who speak.
        teacher_parameters: of the first.
        teacher_loss: the lowest of theirs on the held-out text.
        student_loss: where it begins.
        finished: the student as a model of its own, once it is trained.
    """

    student: Any
    teachers: Sequence[Teacher]
    teacher_parameters: int
    teacher_loss: float
    student_loss: float
    finished: Callable[[], Any]


def personal(order: Order, model: PeftModel, texts: Texts) -> Lesson:
    """A LoRA student, beside the head's adapter on one model.

    Raises:
        ModelError: if the head's adapter is not one of plain LoRA.
    """
    if any(group_of(layer, NAME) > 1 for layer in lora_layers(model).values()):
        raise ModelError(
            "the run's adapters are pooled (lora.kind), which a LoRA student is not: take "
            "--student pruned, or a run with plain adapters"
        )
    model.to(_device())
    rank = order.rank or lora_config(model).r
    add_student(model, rank, order.dropout, order.plan.seed)
    batch_size = order.plan.train.batch_size
    with teaching(model):
        loss = evaluate(model, texts.heldout, batch_size).loss
    return Lesson(
        student=model,
        teachers=[AdapterTeacher(model)],
        teacher_parameters=sum(p.numel() for n, p in model.named_parameters() if "lora_" not in n),
        teacher_loss=loss,
        student_loss=evaluate(model, texts.heldout, batch_size).loss,
        finished=lambda: merge_student(model),
    )


def whole(order: Order, folders: Sequence[Path], texts: Texts, work: Path, told: Told) -> Lesson:
    """A student of its own, pruned or found, and teachers that are whole models.

    Raises:
        ModelError: if vocabularies differ, memory is short, or no teacher is better.
    """
    start = _start(order, folders[0], texts, work, told)
    empty = empty_base(start, _section(start))
    tokens = load_tokenizer(start)
    shapes = [empty_base(folder, _section(folder)) for folder in folders]
    for folder, shape in zip(folders, shapes, strict=True):
        require_same_vocabulary(shape.config, empty.config, load_tokenizer(folder), tokens)
    share = WIDTHS.get(order.precision, 32) / 8
    in_memory = 0 if order.top_k else int(share * sum(map(count, shapes)))
    size, vocabulary = count(empty), int(empty.config.get_text_config().vocab_size)
    require_room(need(in_memory, size, size, order.plan.objective.chunk, vocabulary))
    opened = [
        _teacher(order, folder, texts, work / f"teacher-{number}", told)
        for number, folder in enumerate(folders, start=1)
    ]
    student = load_base(start, _section(start), _device())
    loss = evaluate(student, texts.heldout, order.plan.train.batch_size).loss
    best = min(own for _, own in opened)
    if best >= loss:
        raise ModelError(
            f"the teacher is not better than the student on this text: its held-out loss is "
            f"{best:.4f}, the student's {loss:.4f} before any training. Tune the teacher on such "
            "text first, take another, or train the student on its own"
        )
    return Lesson(
        student=student,
        teachers=[teacher for teacher, _ in opened],
        teacher_parameters=count(shapes[0]),
        teacher_loss=best,
        student_loss=loss,
        finished=lambda: student,
    )


def count(model: Any) -> int:
    """Parameters of a model, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _start(order: Order, teacher: Path, texts: Texts, work: Path, told: Told) -> Path:
    """The folder of the student as it begins."""
    if order.student != PRUNED:
        return resolve(order.student)
    with step(work / "start") as fresh:
        if fresh is not None:
            model = load_base(teacher, _section(teacher), _device())
            target = round(order.ratio * count(model))
            shape = shape_for(model.config, target)
            told.notice(f"pruning the teacher to {shape}")
            student = prune(model, importance(model, texts.train[:CALIBRATION]), shape)
            with quiet():
                student.save_pretrained(fresh)
                load_tokenizer(teacher).save_pretrained(fresh)
    return work / "start"


def _teacher(
    order: Order, folder: Path, texts: Texts, place: Path, told: Told
) -> tuple[Teacher, float]:
    """A teacher, and its held-out loss; one that is asked beforehand is asked here, and closed."""
    batch_size = order.plan.train.batch_size
    if not order.top_k:
        model = _opened(order, folder)
        return ModelTeacher(model), evaluate(model, texts.heldout, batch_size).loss
    with step(place) as fresh:
        if fresh is not None:
            told.notice(f"asking the teacher for its {order.top_k} likeliest tokens")
            model = _opened(order, folder)
            loss = evaluate(model, texts.heldout, batch_size).loss
            (fresh / LOSS).write_text(json.dumps(loss))
            store(model, texts.train, order.top_k, order.plan.objective.chunk, fresh)
    return StoredTeacher(place), float(json.loads((place / LOSS).read_text()))


def _opened(order: Order, folder: Path) -> Any:
    section = _section(folder)
    if order.precision == "fp32":
        return load_base(folder, section, _device())
    linear = [m for m in empty_base(folder, section).modules() if isinstance(m, nn.Linear)]
    group = math.gcd(QuantizeSection().group, *(module.in_features for module in linear))
    quantize = QuantizeSection(group=group)
    store = quantized_base(folder, section, LoraSection(), quantize, WIDTHS[order.precision])
    opened: nn.Module = open_quantized(store, folder, section)
    return opened.to(_device())


def _device() -> torch.device:
    """The accelerator of this machine, if it has one."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def _section(folder: Path) -> ModelSection:
    return ModelSection(source=str(folder))
