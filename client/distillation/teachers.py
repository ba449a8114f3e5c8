"""Who teaches: a whole model, or the head's adapter on the student's own model.

The second costs no weights: student and teacher are two adapters of one base, and take turns.
Three things go wrong there in other implementations, and are guarded here: a teacher's pass that
leaves the student's dropout off, a teacher's adapter that trains along, and an output layer read
without its LoRA (see `hidden.output_head`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from peft import LoraModel, PeftModel
from peft.tuners.lora import LoraLayer
from torch import nn

from fedlora.models.batches import Batch
from fedlora.models.lora import NAME

from .hidden import label_hidden, output_head
from .loss import Dense, Soft

STUDENT = "student"  # PEFT's name for the adapter that learns


class Teacher(Protocol):
    """Says what it thinks of a batch."""

    def soft(self, batch: Batch, picks: Sequence[int]) -> Soft:
        """Of each label.

        Args:
            batch: on the teacher's device.
            picks: which examples of the transfer set its rows are.
        """
        ...


class ModelTeacher:
    """A model of its own, which never trains."""

    def __init__(self, model: Any) -> None:
        """Freeze a causal language model."""
        self.model = model.eval().requires_grad_(False)

    def soft(self, batch: Batch, picks: Sequence[int]) -> Dense:
        """See `Teacher`."""
        with torch.no_grad():
            return Dense(label_hidden(self.model, batch), output_head(self.model))


class AdapterTeacher:
    """The head's adapter on the model whose other adapter is the student."""

    def __init__(self, model: PeftModel) -> None:
        """Teach with adapter `lora.NAME`; the student's is active before and after."""
        self.model = model
        train_only_student(model)

    def soft(self, batch: Batch, picks: Sequence[int]) -> Dense:
        """See `Teacher`."""
        with torch.no_grad(), teaching(self.model):
            hidden = label_hidden(self.model, batch)
        head = output_head(self.model)
        return Dense(hidden, _TaughtHead(self.model) if isinstance(head, LoraLayer) else head)


class _TaughtHead(nn.Module):
    """The output layer, with the teacher's LoRA on it rather than the student's."""

    def __init__(self, model: PeftModel) -> None:
        super().__init__()
        self._model = [model]  # in a list, so as not to become a submodule

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits."""
        [model] = self._model
        with teaching(model):
            logits: torch.Tensor = output_head(model)(hidden)
            return logits


@contextmanager
def teaching(model: PeftModel) -> Iterator[None]:
    """Evaluation mode with the teacher's adapter; afterwards all is as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    _tuner(model).set_adapter(NAME, inference_mode=True)
    try:
        yield
    finally:
        train_only_student(model)
        for module in training:
            module.training = True


def train_only_student(model: PeftModel) -> None:
    """Make the student's adapter the active one, and its factors all that trains."""
    _tuner(model).set_adapter(STUDENT)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(f".{STUDENT}." in name)


def _tuner(model: PeftModel) -> LoraModel:
    assert isinstance(model.base_model, LoraModel)
    return model.base_model
