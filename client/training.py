"""A node's training in one round: LoRA on its own examples, for a given number of steps.

Every round starts with a fresh optimizer, since the averaged adapter is a point that its old
moments know nothing of; the learning rate follows one schedule over all rounds of the run.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from peft import PeftModel
from torch.nn import Parameter
from torch.optim import AdamW
from transformers import get_scheduler

from fedlora.adapters.errors import FedloraError
from fedlora.models.batches import Batch, SampleStream, collate, derived_seed
from fedlora.models.examples import Example
from fedlora.models.losses import label_count, loss_sum, pad_id
from fedlora.recipes.schema import Task, TrainSection


@dataclass(frozen=True)
class StepReport:
    """One optimizer step, of `steps` in this round; the loss is a mean per label, in nats."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float


@dataclass(frozen=True)
class TrainReport:
    """One round of a node.

    Attributes:
        examples: that the node holds.
        steps: optimizer steps.
        tokens: processed, without padding.
        label_tokens: learned.
        loss_first: mean per label in the first step, in nats; likewise `loss_last`.
        loss_mean: mean of the steps' losses.
        seconds: of wall time.
        learning_rate: of the last step.
    """

    examples: int
    steps: int
    tokens: int
    label_tokens: int
    loss_first: float
    loss_last: float
    loss_mean: float
    seconds: float
    learning_rate: float


def train_round(
    model: PeftModel,
    examples: Sequence[Example],
    task: Task,
    round: int,
    node: str,
    on_step: Callable[[StepReport], None] | None = None,
) -> TrainReport:
    """Train the model's trainable parameters in place.

    The same model, examples, task, round, node and number of threads give the same bytes.

    Args:
        model: with float32 weights; left in evaluation mode, on accelerate's device.
        examples: the node's own, at least one.
        task: seed, number of rounds, and how to train.
        round: from 1 to `task.rounds`.
        node: the node's name, which its order of examples and its dropout depend on.
        on_step: called after each optimizer step.

    Raises:
        FedloraError: if the loss is not finite; the step is named.
    """
    train = task.train
    accelerator = _accelerator(train.precision)
    model.to(accelerator.device)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = AdamW(parameters, lr=train.learning_rate, weight_decay=train.weight_decay)
    rate = schedule(train, task.rounds)
    stream = SampleStream(len(examples), task.seed, node)
    losses: list[float] = []
    tokens = labels = 0
    began = time.perf_counter()
    with _training(model, derived_seed(task.seed, node, round, "dropout")):
        for step in range((round - 1) * train.steps, round * train.steps):
            numbers = range(step * train.accumulate, (step + 1) * train.accumulate)
            picks = [stream.batch(number, train.batch_size) for number in numbers]
            batches = [collate([examples[i] for i in pick], pad_id(model)) for pick in picks]
            optimizer.param_groups[0]["lr"] = learning_rate = rate(step)
            loss = _step(model, batches, accelerator, optimizer, parameters, train.max_grad_norm)
            local = step - (round - 1) * train.steps + 1
            if not math.isfinite(loss):
                raise FedloraError(
                    f"node {node}: the loss of step {local} of round {round} is {loss}; expected a "
                    "finite number. Lower train.learning_rate, or use precision fp32"
                )
            losses.append(loss)
            tokens += sum(batch.tokens for batch in batches)
            labels += sum(label_count(batch) for batch in batches)
            if on_step:
                speed = tokens / (time.perf_counter() - began)
                on_step(StepReport(local, train.steps, loss, speed))
    return TrainReport(
        examples=len(examples),
        steps=train.steps,
        tokens=tokens,
        label_tokens=labels,
        loss_first=losses[0],
        loss_last=losses[-1],
        loss_mean=sum(losses) / len(losses),
        seconds=time.perf_counter() - began,
        learning_rate=learning_rate,
    )


def schedule(train: TrainSection, rounds: int) -> Callable[[int], float]:
    """The learning rate by step, counted from 0 over all rounds.

    The curves are those of transformers, read so that neither the first step nor the last has the
    rate zero: steps 1 .. n of a schedule that begins at 0 and would end at n + 1.
    """
    steps = train.steps * rounds
    name = "constant_with_warmup" if train.schedule == "constant" else train.schedule
    scheduler = get_scheduler(
        name,
        AdamW([Parameter(torch.zeros(1))], lr=train.learning_rate),
        num_warmup_steps=int(train.warmup * steps),
        num_training_steps=steps + 1,
    )
    factor = scheduler.lr_lambdas[0]
    return lambda step: train.learning_rate * float(factor(step + 1))


def _step(
    model: PeftModel,
    batches: Sequence[Batch],
    accelerator: Accelerator,
    optimizer: AdamW,
    parameters: Sequence[Parameter],
    max_grad_norm: float,
) -> float:
    """One optimizer step; returns the mean loss per label over all its batches.

    Each batch is divided by the labels of the whole step: a mean of means would weigh labels of
    short answers more than those of long ones.
    """
    labels = sum(label_count(batch) for batch in batches)
    total = 0.0
    for batch in batches:
        with accelerator.autocast():
            loss = loss_sum(model, batch.to(accelerator.device)) / labels
        accelerator.backward(loss)
        total += loss.item()
    if math.isfinite(total):
        accelerator.clip_grad_norm_(parameters, max_grad_norm)
        optimizer.step()
    optimizer.zero_grad()
    return total


@contextmanager
def _training(model: PeftModel, seed: int) -> Iterator[None]:
    """Training mode, with the randomness of dropout from `seed` and the global one untouched."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.train()
        try:
            yield
        finally:
            model.eval()


def _accelerator(precision: str) -> Accelerator:
    wanted = "no" if precision == "fp32" else precision
    try:
        return Accelerator(mixed_precision=wanted)
    except ValueError:  # accelerate keeps one precision for the whole process; runs have their own
        AcceleratorState._reset_state()
        return Accelerator(mixed_precision=wanted)
