"""One party of a cross-model run learns from public examples: the same rule on every side."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import AdamW

from fedlora.adapters.errors import FedloraError, RecipeError
from fedlora.recipes.schema import StudySection, Task

from .batches import Batch, SampleStream, collate, derived_seed
from .examples import IGNORED, Example
from .knowledge import Knowledge, predict
from .losses import pad_id
from .pieces import Vocabulary
from .public import public_examples
from .transfer import SoftTargets, own_ids, soft_targets, transfer_loss
from .tuned import TunedModel


@dataclass(frozen=True)
class StudyStep:
    """One optimizer step on public text, of `steps`; the loss is a mean per label, in nats."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float


class Student:
    """A model with its adapter, which learns public examples and says what it knows of them.

    Args:
        tuned: the model; its adapter is trained in place.
        task: how to train, with a `public` section.
    """

    def __init__(self, tuned: TunedModel, task: Task) -> None:
        """See the class."""
        if task.public is None:
            raise RecipeError("the task has no [public] section")
        self._tuned, self._task = tuned, task
        self._public: StudySection = task.public
        self._vocabulary = Vocabulary.of(tuned.tokenizer)

    def predict(self, records: Sequence[str]) -> Knowledge:
        """What the model knows of public examples."""
        return self._predict(self._examples(records))

    def study(
        self,
        records: Sequence[str],
        sources: Sequence[Knowledge],
        steps: int,
        rate: float,
        key: str,
        on_step: Callable[[StudyStep], None] = lambda step: None,
    ) -> dict[int, float]:
        """Train on public examples; follow a source where its loss is below the own.

        Args:
            records: the examples.
            sources: what others know of them.
            steps: of the optimizer.
            rate: at which it learns.
            key: decides, with the run's seed, the order of the examples and the dropout.
            on_step: called after each step.

        Returns:
            The examples for which a source was followed, each with the loss that it had.

        Raises:
            FedloraError: if the loss is not finite.
        """
        examples = self._examples(records)
        soft, followed = self._targets(examples, sources)
        train, model = self._task.train, self._tuned.model
        parameters = [one for one in model.parameters() if one.requires_grad]
        optimizer = AdamW(parameters, lr=rate, weight_decay=train.weight_decay)
        stream = SampleStream(len(examples), self._task.seed, key)
        tokens, began = 0, time.perf_counter()
        with torch.random.fork_rng():
            torch.manual_seed(derived_seed(self._task.seed, key, "dropout"))
            model.train()
            for step in range(steps):
                picks = [examples[place] for place in stream.batch(step, train.batch_size)]
                batch = collate([one for _, one in picks], pad_id(model)).to(model.device)
                loss = self._loss(batch, SoftTargets.joined([soft[number] for number, _ in picks]))
                if not math.isfinite(loss.item()):
                    raise FedloraError(
                        f"{key}: the loss of step {step + 1} on public text is {loss.item()}; "
                        "expected a finite number. Lower train.learning_rate"
                    )
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, train.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
                tokens += batch.tokens
                speed = tokens / (time.perf_counter() - began)
                on_step(StudyStep(step + 1, steps, loss.item(), speed))
        model.eval()
        return followed

    def _loss(self, batch: Batch, soft: SoftTargets) -> Tensor:
        model, half = self._tuned.model, self._task.train.precision == "bf16"
        with torch.autocast(model.device.type, torch.bfloat16, enabled=half):
            return transfer_loss(model, batch, soft, self._public.kd)

    def _examples(self, records: Sequence[str]) -> list[tuple[int, Example]]:
        return public_examples(records, self._tuned.tokenizer, self._task)

    def _predict(self, examples: Sequence[tuple[int, Example]]) -> Knowledge:
        public, train = self._public, self._task.train
        parts = self._vocabulary, public.top_k, train.batch_size
        return predict(self._tuned.model, examples, *parts)

    def _targets(
        self, examples: Sequence[tuple[int, Example]], sources: Sequence[Knowledge]
    ) -> tuple[Mapping[int, SoftTargets], dict[int, float]]:
        """Targets of every example, and the losses of the sources where one is better."""
        own = self._predict(examples).loss_of()
        k = self._public.top_k
        soft = {number: SoftTargets.none(one.label_count, k) for number, one in examples}
        followed: dict[int, float] = {}
        for source in sources:
            better = {one: loss for one, loss in source.loss_of().items() if loss < own.get(one, 0)}
            if not better:
                continue
            words = own_ids(source, self._vocabulary)
            labels = {number: _labels(one) for number, one in examples if number in better}
            for number, gold in labels.items():
                parts = source, number, gold, self._vocabulary, words, k
                soft[number] = soft_targets(*parts)
            followed |= better
        return soft, followed


def _labels(example: Example) -> list[int]:
    kept = () if isinstance(example.labels, int) else example.labels
    return [label for label in kept if label != IGNORED]
