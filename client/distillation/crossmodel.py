"""A node's part in a cross-model round: learn own text, then public text, then say what it knows.

The adapter never leaves the node, and nothing is measured on private text but the loss of each
step, which is shown here alone. What it holds after a round is kept, so that a round that is tried
again starts from where it started before.
"""

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from fedlora.adapters import Adapter, RunError, WireError
from fedlora.models.knowledge import Knowledge
from fedlora.models.lora import initial_adapter
from fedlora.models.study import Student, StudyStep
from fedlora.models.tuned import TunedModel
from fedlora.protos.codec import write
from fedlora.recipes.schema import Task
from fedlora.strategies.lessons import ReceivedLesson
from fedlora.strategies.payloads import FileTensors, adapter_tensors, read_adapter_tensors

from ..data import NodeData
from ..place import NodePlace
from ..training import StepReport, train_round


def learn(
    lesson: ReceivedLesson,
    tuned: TunedModel,
    data: NodeData,
    task: Task,
    place: NodePlace,
    on_step: Callable[[str, StepReport], None] | None = None,
) -> Knowledge:
    """One round; returns what this node's model knows of the lesson's next public examples.

    Args:
        lesson: as received.
        tuned: this node's own model.
        data: its private examples.
        task: as the lesson has it.
        place: name of the node, and folder for its adapters.
        on_step: called after each step on private and public text, with the node's name.

    Raises:
        WireError: if the lesson is no cross-model one, or malformed.
    """
    proto, public = lesson.proto, task.public
    if public is None or not proto.study or not proto.next:
        raise WireError("the coordinator's lesson has no public examples, or no task for them")
    kept = Adapters(place.state / "lessons" / proto.origin[:32] / place.name)
    start = kept.before(proto.round) or initial_adapter(tuned.model, task.seed)
    tuned.become(start, (), lambda digest: {})

    def tell(step: StepReport) -> None:
        if on_step:
            on_step(place.name, step)

    report = train_round(tuned.model, data.train, task, proto.round, place.name, tell)
    student = Student(tuned, task)
    student.study(
        proto.study,
        lesson.sources(public.top_k, task.train.max_length),
        public.steps,
        report.learning_rate,
        f"{place.name}, round {proto.round}",
        lambda step: tell(_as_report(step)),
    )
    known = student.predict(proto.next)
    kept.keep(proto.round, tuned.read())
    return known


class Adapters:
    """A node's adapters after the rounds of one run, in a folder of their own."""

    def __init__(self, directory: Path) -> None:
        """Keep them in `directory`, which is made when needed."""
        self._directory = directory

    def before(self, round: int) -> Adapter | None:
        """The latest of an earlier round; later ones are void, and removed.

        Raises:
            RunError: if the file was damaged.
        """
        held = {int(path.stem): path for path in self._directory.glob("[0-9]*.safetensors")}
        for later in held.keys() - set(range(round)):
            held.pop(later).unlink()
        if not held:
            return None
        path = held[max(held)]
        try:
            return read_adapter_tensors(FileTensors(path))
        except WireError as error:
            raise RunError(
                f"this node's adapter {path} was damaged: {error}; remove it to go on from the one "
                "before, or from none"
            ) from None

    def keep(self, round: int, adapter: Adapter) -> None:
        """Write the adapter of a round: whole, or not at all. The last two are kept.

        Raises:
            RunError: if the disk refuses.
        """
        place = self._place(round)
        part = place.with_suffix(f".{os.getpid()}.part")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write(adapter_tensors(adapter), part)
            part.replace(place)
            for old in sorted(self._directory.glob("[0-9]*.safetensors"))[:-2]:
                old.unlink()
        except OSError as error:
            raise RunError(f"cannot keep this node's adapter in {place}: {error}") from None

    def _place(self, round: int) -> Path:
        return self._directory / f"{round:06d}.safetensors"


def _as_report(step: StudyStep) -> StepReport:
    return StepReport(**asdict(step))
