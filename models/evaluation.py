"""How well a model predicts a set of examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from fedlora.adapters.errors import DataError

from .batches import collate
from .examples import Example
from .losses import label_logits, pad_id


@dataclass(frozen=True)
class EvalReport:
    """The result of an evaluation.

    Attributes:
        loss: mean cross entropy over all labels, in nats.
        accuracy: share of the labels that the model puts first: next tokens, or classes.
        tokens: labels (of a classifier: as many as examples).
        examples: sequences.
    """

    loss: float
    accuracy: float
    tokens: int
    examples: int


def evaluate(model: Any, examples: Sequence[Example], batch_size: int) -> EvalReport:
    """Loss and accuracy of a model, which is left in the mode, training or not, that it was in.

    Args:
        model: a causal language model or sequence classifier of transformers, or PEFT's wrapper.
        examples: at least one.
        batch_size: sequences in one forward pass.

    Raises:
        DataError: without examples.
    """
    if not examples:
        raise DataError("evaluation needs at least one example, found none")
    # Sequences of like length stand together: the padding of a batch is work for nothing.
    ordered = sorted(examples, key=lambda example: len(example.input_ids))
    loss, right, labels = 0.0, 0, 0
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for start in range(0, len(ordered), batch_size):
                batch = collate(ordered[start : start + batch_size], pad_id(model))
                logits, targets = label_logits(model, batch.to(model.device))
                loss += F.cross_entropy(logits, targets, reduction="sum").item()
                right += int((logits.argmax(dim=-1) == targets).sum())
                labels += len(targets)
    finally:
        model.train(was_training)
    return EvalReport(loss / labels, right / labels, labels, len(ordered))
