"""The student's training: steps of KD and cross entropy, which can be interrupted anywhere.

Batches, dropout and samples are functions of the seed and the step, so a distillation that was
killed and gone on with ends with the same bytes as one that was not.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch.optim import AdamW

from fedlora.adapters import FedloraError
from fedlora.models.batches import Batch, SampleStream, collate, derived_seed, generator
from fedlora.models.examples import Example
from fedlora.models.losses import label_count, pad_id
from fedlora.recipes.schema import TrainSection

from ..training import schedule
from .checkpoints import Checkpoints
from .gate import equal_weights, gated_weights
from .hidden import check_head, label_hidden, label_targets, output_head
from .loss import Objective, Terms, backward, label_losses
from .onpolicy import sampled
from .teachers import Teacher

ORDER = "distillation"  # names the order of examples


@dataclass(frozen=True)
class Plan:
    """How a student is trained.

    Attributes:
        train: steps, batches and learning rate; fp32 alone.
        objective: what it is taught by.
        on_policy: share of the batches that the student writes itself.
        sample_tokens: that it writes at most, for each of their prompts.
        gate: listen to a teacher only on samples that it predicts better than the student.
        seed: of order, dropout and samples.
    """

    train: TrainSection
    objective: Objective = field(default_factory=Objective)
    on_policy: float = 0.0
    sample_tokens: int = 64
    gate: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Attributes:
        step: from 1.
        cross_entropy: mean per label, in nats; of a batch that the student wrote it says nothing.
        divergence: mean per label, in nats, of teacher and student.
        on_policy: whether the student wrote the batch.
        learning_rate: of this step.
        tokens_per_second: without padding; of this step.
    """

    step: int
    cross_entropy: float
    divergence: float
    on_policy: bool
    learning_rate: float
    tokens_per_second: float


def distil(
    student: Any,
    teachers: Sequence[Teacher],
    examples: Sequence[Example],
    plan: Plan,
    checkpoints: Checkpoints | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
) -> None:
    """Train the student's trainable parameters in place; it is left in evaluation mode.

    Args:
        student: a causal language model in float32.
        teachers: none for cross entropy alone, if the share of the divergence is 0.
        examples: the transfer set, at least one.
        plan: see there.
        checkpoints: continue from the newest, and write new ones.
        on_step: told of each step.

    Raises:
        ModelError: if the student's logits are not its output layer's.
        FedloraError: if the loss is not finite; the step is named.
    """
    train = plan.train
    parameters = {name: one for name, one in student.named_parameters() if one.requires_grad}
    optimizer = AdamW(parameters.values(), lr=train.learning_rate, weight_decay=train.weight_decay)
    rate, stream = schedule(train, 1), SampleStream(len(examples), plan.seed, ORDER)
    first = checkpoints.load(parameters, optimizer) if checkpoints else 0
    check_head(student, collate(examples[:1], pad_id(student)).to(student.device))
    for number in range(first, train.steps):
        began = time.perf_counter()
        picks = [
            stream.batch(number * train.accumulate + one, train.batch_size)
            for one in range(train.accumulate)
        ]
        own = _drawn(plan, number)
        optimizer.param_groups[0]["lr"] = learning_rate = rate(number)
        with torch.random.fork_rng():
            torch.manual_seed(derived_seed(plan.seed, number, "distillation"))
            texts = [[examples[i] for i in pick] for pick in picks]
            if own:
                texts = [sampled(student, text, plan.sample_tokens) for text in texts]
            batches = [collate(text, pad_id(student)).to(student.device) for text in texts]
            terms = _gradients(student, teachers, list(zip(batches, picks, strict=True)), plan, own)
        losses = terms.cross_entropy / terms.labels, terms.divergence / terms.labels
        if not all(map(math.isfinite, losses)):
            raise FedloraError(
                f"the loss of step {number + 1} is {losses}; expected finite numbers. Lower the "
                "learning rate"
            )
        torch.nn.utils.clip_grad_norm_(parameters.values(), train.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        speed = sum(batch.tokens for batch in batches) / (time.perf_counter() - began)
        step = Step(number + 1, *losses, own, learning_rate, speed)
        if checkpoints:
            checkpoints.add(asdict(step))
            if step.step % checkpoints.every == 0 and step.step < train.steps:
                checkpoints.save(step.step, parameters, optimizer)
        on_step(step)
    student.eval()


def _gradients(
    student: Any,
    teachers: Sequence[Teacher],
    batches: Sequence[tuple[Batch, Sequence[int]]],
    plan: Plan,
    own: bool,
) -> Terms:
    """Add a step's gradients to the student, of all its batches."""
    # What the student wrote has no gold tokens: there the teacher alone judges.
    objective = replace(plan.objective, share=1.0) if own else plan.objective
    labels = sum(label_count(batch) for batch, _ in batches)
    total = Terms(0.0, 0.0, 0)
    for batch, picks in batches:
        softs = [one.soft(batch, picks) for one in teachers] if objective.share else []
        student.train()
        hidden, head, targets = (
            label_hidden(student, batch),
            output_head(student),
            label_targets(batch),
        )
        if plan.gate and softs and not own:
            losses = label_losses(hidden, head, targets, objective.chunk)
            weights = gated_weights(softs, losses, targets, batch, objective.chunk)
        else:
            weights = equal_weights(softs, targets)
        spoken = list(zip(softs, weights, strict=True))
        total += backward(hidden, head, targets, spoken, objective, labels)
    return total


def _drawn(plan: Plan, step: int) -> bool:
    """Whether the student writes this step's text."""
    draw = torch.rand((), generator=generator(plan.seed, step, "on-policy")).item()
    return draw < plan.on_policy
