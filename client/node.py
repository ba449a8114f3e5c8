"""A node: private data, a model that follows the head, and one round of training at a time.

Of the private text nothing leaves: a node replies with factors and counted metrics alone.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from pydantic import ValidationError

from fedlora.adapters import Adapter, BaseMismatchError, ModelError, WireError
from fedlora.models import neighbours
from fedlora.models.evaluation import evaluate
from fedlora.models.fingerprint import fingerprint
from fedlora.models.holding import Holding, holding
from fedlora.models.knowledge import Knowledge
from fedlora.models.quantized_model import QuantizedModel, quantized
from fedlora.models.source import resolve
from fedlora.models.threads import set_threads
from fedlora.models.tuned import FoldedWeights, TunedModel, shared, tokenizer_of
from fedlora.protos import Hello, Introduction
from fedlora.recipes.schema import Task
from fedlora.strategies import ReceivedHead
from fedlora.strategies.lessons import ReceivedLesson

from .data import NodeData
from .distillation.crossmodel import learn
from .place import NodePlace
from .residuals import ResidualCache
from .training import StepReport, train_round

CALIBRATION_ROWS, CALIBRATION_LENGTH = 20, 256

OnStep = Callable[[str, StepReport], None]


@dataclass(frozen=True)
class Trained:
    """What a node made of a head.

    Attributes:
        adapter: as trained.
        examples: that it was trained on.
        metrics: counted on the way.
        folded: what the frozen weights below it are; see `TunedModel.folded`.
    """

    adapter: Adapter
    examples: int
    metrics: dict[str, float]
    folded: str


class Node:
    """One party of the federation."""

    def __init__(self, place: NodePlace, on_step: OnStep | None = None) -> None:
        """A node that reports each training step to `on_step`, with its name."""
        self.place = place
        place.state.mkdir(parents=True, exist_ok=True)
        self._on_step = on_step
        self._residuals = ResidualCache(place.state / "residuals")

    def introduce(self, hello: Hello, version: str, threads: int) -> Introduction:
        """Check that this node can take part, and say with what.

        Raises:
            BaseMismatchError: if the coordinator's base is another.
            ModelError: if no width of the run fits this node.
            DataError: if the data can't be used for the task.
        """
        task = read_task(hello.task)
        base = self._check_base(task, hello.base)
        own = self._holding(task)
        data = _node_data(self.place, task)
        return Introduction(
            node=self.place.name,
            examples=len(data.train),
            heldout=len(data.heldout),
            truncated=data.counts.truncated,
            base=base,
            version=version,
            threads=threads,
            nonce=hello.nonce,
            width=own.widest,
            mean_width=own.mean,
            held=[bytes.fromhex(digest) for digest in self._residuals.held()],
        )

    def train(self, head: ReceivedHead) -> Trained:
        """Evaluate the head, train from it, and hand out the adapter."""
        task = read_task(head.proto.task)
        tuned, data = self._follow(head, task), _node_data(self.place, task)
        metrics = self._evaluate(tuned, data, task)
        report = train_round(
            tuned.model,
            data.train,
            task,
            head.proto.round + 1,
            self.place.name,
            partial(self._on_step, self.place.name) if self._on_step else None,
        )
        metrics |= {
            "train_loss": report.loss_mean,
            "tokens": float(report.tokens),
            "label_tokens": float(report.label_tokens),
            "tokens_per_second": report.tokens / report.seconds,
            "train_seconds": report.seconds,
            "fold_error": tuned.fold_error,
            "side_dropped": head.proto.side.dropped,
        }
        return Trained(tuned.read(), report.examples, metrics, tuned.folded)

    def learn(self, lesson: ReceivedLesson) -> Knowledge:
        """Take a cross-model lesson, and say what this node knows of the next public examples."""
        task = read_task(lesson.proto.task)
        self._share_cores(task)
        self._holding(task)
        tuned = shared(self.place.source(task), task.model, task.lora)
        return learn(lesson, tuned, _node_data(self.place, task), task, self.place, self._on_step)

    def evaluate(self, head: ReceivedHead) -> tuple[dict[str, float], str]:
        """Evaluate the head on this node's held-out examples.

        Returns:
            Metrics, and what the frozen weights have become.
        """
        task = read_task(head.proto.task)
        tuned, data = self._follow(head, task), _node_data(self.place, task)
        metrics = self._evaluate(tuned, data, task)
        if task.quantize.per_width:
            metrics |= self._at_each_width(head, data, task)
        metrics |= {"examples": float(len(data.heldout)), "fold_error": tuned.fold_error}
        return metrics, tuned.folded

    def _follow(
        self, head: ReceivedHead, task: Task, subnet: Mapping[str, int] | None = None
    ) -> TunedModel | QuantizedModel:
        """This process's model, become the head; at the widths of `subnet`, if given."""
        self._share_cores(task)
        self._check_base(task, head.proto.base)
        self._residuals.keep(head.folded_payloads)
        own, source = self._holding(task), self.place.source(task)
        if own.subnet is None:
            tuned = shared(source, task.model, task.lora)
            tuned.become(head.adapter, head.history, self._residuals.read, self._snapshot(head))
            return tuned
        text = self._calibration(task)
        parts = source, task.model, task.lora, task.quantize, own.widest, text, own.lean
        held = quantized(*parts)
        held.become(
            head.adapter,
            subnet or head.proto.subnet or own.subnet,
            head.history,
            self._residuals.read,
            head.side,
        )
        return held

    def _holding(self, task: Task) -> Holding:
        place = self.place
        if task.public and (place.memory or place.precision not in (None, "fp32")):
            raise ModelError(
                f"node {place.name}: a cross-model run needs the model in float32; leave out "
                "--precision and --memory, and name a smaller --model if there is no room"
            )
        return holding(place.source(task), task, place.precision, place.memory)

    def _calibration(self, task: Task) -> tuple[tuple[int, ...], ...]:
        """Some of this node's own text, for GPTQ: as fits what it will see, and it stays here."""
        if task.quantize.method != "gptq":
            return ()
        ids = [i for example in _node_data(self.place, task).train for i in example.input_ids]
        length = min(CALIBRATION_LENGTH, len(ids))
        starts = range(0, len(ids) - length + 1, length)
        return tuple(tuple(ids[start : start + length]) for start in starts[:CALIBRATION_ROWS])

    def _at_each_width(self, head: ReceivedHead, data: NodeData, task: Task) -> dict[str, float]:
        """How the head does where all modules have one width, for each that this node holds."""
        found: dict[str, float] = {}
        own = self._holding(task)
        for bits in sorted(task.quantize.widths):
            if bits <= own.mean:
                subnet = dict.fromkeys(own.modules, bits)
                metrics = self._evaluate(self._follow(head, task, subnet), data, task)
                found |= {f"{name}_{bits}bit": value for name, value in metrics.items()}
        return found

    def _snapshot(self, head: ReceivedHead) -> FoldedWeights | None:
        """What the coordinator sent, now or before, for the oldest residuals."""
        announced = head.proto.snapshot
        if not announced.covers:
            return None
        weights = self._residuals.read_tensors(announced.manifest.digest.hex())
        return FoldedWeights(announced.covers, weights)

    def _share_cores(self, task: Task) -> None:
        """Threads as this node or the task asks; else an equal share, if others run here too."""
        others = neighbours.count()
        if self.place.threads or task.train.threads or others:
            set_threads(self.place.threads or task.train.threads, max(1, others))

    def _evaluate(
        self, tuned: TunedModel | QuantizedModel, data: NodeData, task: Task
    ) -> dict[str, float]:
        if not data.heldout:
            return {}
        report = evaluate(tuned.model, data.heldout, task.train.batch_size)
        return {"eval_loss": report.loss, "eval_accuracy": report.accuracy}

    def _check_base(self, task: Task, announced: str) -> str:
        own = fingerprint(resolve(self.place.source(task)))
        if own != announced and task.public is None:
            raise BaseMismatchError(
                f"node {self.place.name} holds another base: {self.place.source(task)!r} has the "
                f"fingerprint {own}, the coordinator's is {announced}; give both the same files"
            )
        return own


def read_task(text: str) -> Task:
    """The task in a message from the coordinator.

    Raises:
        WireError: if it is not one that this version knows.
    """
    try:
        return Task.model_validate(json.loads(text))
    except (ValidationError, ValueError) as error:
        raise WireError(f"the coordinator's task can't be understood: {error}") from None


def _node_data(place: NodePlace, task: Task) -> NodeData:
    return _load_data(place, task.model_dump_json())


@lru_cache(maxsize=256)
def _load_data(place: NodePlace, task_json: str) -> NodeData:
    """A node's data are read once a task, however often a message names it."""
    task = Task.model_validate_json(task_json)
    tokenizer = tokenizer_of(place.source(task))
    return NodeData.load(place.data, place.heldout, task, tokenizer, place.name)
