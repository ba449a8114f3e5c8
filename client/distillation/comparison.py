"""Two models on the same text: how well each knows it, and how far they are apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from fedlora.models.batches import collate
from fedlora.models.examples import Example
from fedlora.models.losses import label_logits, pad_id

BATCH = 4  # sequences of a forward pass, whose logits of both models stand in memory


@dataclass(frozen=True)
class Measured:
    """Teacher and student on the transfer text, before any distillation, as means per label.

    Attributes:
        teacher_loss: cross entropy in nats.
        student_loss: likewise.
        divergence: KL(teacher || student) in nats.
        agreement: share of labels for which both put the same token first.
    """

    teacher_loss: float
    student_loss: float
    divergence: float
    agreement: float


def compare(teacher: Any, student: Any, examples: Sequence[Example], chunk: int = 64) -> Measured:
    """Both models on the same text, of which neither learns.

    Args:
        teacher: in evaluation mode; likewise `student`, with the same vocabulary.
        student: see there.
        examples: at least one.
        chunk: labels that are compared at once.
    """
    sums, labels = [0.0] * 4, 0
    ordered = sorted(examples, key=lambda example: len(example.input_ids))
    with torch.inference_mode():
        for start in range(0, len(ordered), BATCH):
            batch = collate(ordered[start : start + BATCH], pad_id(student)).to(student.device)
            (own, targets), (other, _) = label_logits(student, batch), label_logits(teacher, batch)
            for part in (slice(i, i + chunk) for i in range(0, len(targets), chunk)):
                log_q, log_p = own[part].log_softmax(-1), other[part].log_softmax(-1)
                found = (
                    F.nll_loss(log_p, targets[part], reduction="sum"),
                    F.nll_loss(log_q, targets[part], reduction="sum"),
                    F.kl_div(log_q, log_p, reduction="sum", log_target=True),
                    (log_q.argmax(-1) == log_p.argmax(-1)).sum(),
                )
                sums = [total + one.item() for total, one in zip(sums, found, strict=True)]
            labels += len(targets)
    return Measured(*(total / labels for total in sums))
