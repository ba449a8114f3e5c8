"""What is to be distilled from what, and what came of it."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from fedlora.adapters import RecipeError
from fedlora.recipes.schema import DataSection

from .training import Plan, Step

PRUNED, PERSONAL = "pruned", "lora"

Precision = Literal["fp32", "int8", "int4"]


@dataclass(frozen=True)
class Source:
    """A teacher, before it is opened.

    Attributes:
        identity: tells it from every other.
        folder: gives the folder of the whole model, and may write it to the place that it is
            handed, where nothing is yet.
        adapted: opens it as base and adapter; None for what has none.
    """

    identity: str
    folder: Callable[[Path], Path]
    adapted: Callable[[], tuple[PeftModel, PreTrainedTokenizerBase]] | None = None


@dataclass(frozen=True)
class Order:
    """What is wanted.

    Attributes:
        data: file of the transfer set, of which a share is held out.
        section: how it is read.
        student: "pruned", "lora", or the source of a smaller model.
        plan: of the training.
        ratio: of a pruned student's parameters to the teacher's.
        rank: of a LoRA student; 0 for that of the head.
        dropout: of a LoRA student.
        top_k: ask the teacher beforehand for so many tokens a label; 0 for it to answer in whole.
        precision: that a teacher's weights are held at.
        every: steps from one checkpoint to the next.
    """

    data: Path
    section: DataSection
    student: str
    plan: Plan
    ratio: float = 0.4
    rank: int = 0
    dropout: float = 0.0
    top_k: int = 0
    precision: Precision = "fp32"
    every: int = 50

    def check(self, teachers: Sequence[Source]) -> None:
        """See that its parts go together.

        Raises:
            RecipeError: naming two that don't.
        """
        if not teachers:
            raise RecipeError("distillation needs a teacher: name a run or a model")
        if self.top_k and self.plan.objective.share == 1:
            raise RecipeError(
                f"a teacher's {self.top_k} likeliest tokens alone make a student repeat itself: "
                "use them together with cross entropy, a share of the divergence below 1"
            )
        if self.top_k and (self.plan.on_policy or self.plan.objective.temperature != 1):
            raise RecipeError(
                "a teacher that is asked beforehand can't judge what the student writes later, nor "
                "at another temperature: leave out --top-k, or --on-policy and --temperature"
            )
        if self.student == PERSONAL:
            if len(teachers) > 1 or teachers[0].adapted is None:
                raise RecipeError(
                    "a LoRA student learns from the adapter of one run: name a run, and no other "
                    "teacher"
                )
            if self.top_k or self.precision != "fp32":
                raise RecipeError(
                    "a LoRA student and its teacher are one float32 model: leave out --top-k and "
                    "--teacher-precision"
                )

    def facts(self, teachers: Sequence[Source]) -> dict[str, str]:
        """All that the student depends on, as text."""
        plan = asdict(self.plan) | asdict(self.plan.objective)
        plan |= self.plan.train.model_dump()
        own = asdict(self) | plan | {"section": self.section.model_dump_json()}
        for gone in ("plan", "objective", "train", "every", "data", "threads"):
            own.pop(gone)
        digest = hashlib.sha256(self.data.read_bytes()).hexdigest() if self.data.is_file() else ""
        found = {name: str(value) for name, value in own.items()}
        found |= {"data": digest or str(self.data)}
        return found | {f"teacher {i + 1}": one.identity for i, one in enumerate(teachers)}


@dataclass(frozen=True)
class Summary:
    """What came of it; losses are means per label of the held-out text, in nats.

    Attributes:
        teacher_parameters: of the first teacher.
        student_parameters: likewise.
        teacher_loss: the lowest of the teachers'.
        loss_before: of the student as it began.
        loss_after: of the student.
        steps: of training.
        labels: in the held-out text.
    """

    teacher_parameters: int
    student_parameters: int
    teacher_loss: float
    loss_before: float
    loss_after: float
    steps: int
    labels: int


@dataclass(frozen=True)
class Told:
    """Who hears of it: lines for people, and steps of the training."""

    notice: Callable[[str], None] = field(default=lambda text: None)
    step: Callable[[Step], None] = field(default=lambda step: None)
