"""A node's training against a plain loop, and what makes it repeatable."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import nn
from torch.nn import functional as F

from fedlora.adapters import Adapter
from fedlora.adapters.errors import FedloraError
from fedlora.client.training import StepReport, TrainReport, schedule, train_round
from fedlora.models.batches import SampleStream
from fedlora.models.examples import IGNORED, Example
from fedlora.models.loading import load_base
from fedlora.models.lora import attach, initial_adapter, read_adapter, write_adapter
from fedlora.recipes.schema import LoraSection, ModelSection, Task, TrainSection

CAUSAL = ModelSection(source="tiny")
CLASSIFIER = ModelSection(source="tiny", task="sequence-classification", labels=("a", "b", "c"))


def texts(count: int = 7) -> list[Example]:
    """Sequences of unlike lengths, whose answers have unlike lengths too."""
    draw = torch.Generator().manual_seed(5)
    examples = []
    for number in range(count):
        length, prompt = 6 + 2 * number, 2 + number // 2
        ids = tuple(torch.randint(3, 400, (length,), generator=draw).tolist())
        examples.append(Example(ids, (*[IGNORED] * prompt, *ids[prompt:])))
    return examples


def classified(count: int = 7) -> list[Example]:
    return [Example(example.input_ids, i % 3) for i, example in enumerate(texts(count))]


def task(model: ModelSection = CAUSAL, **train: Any) -> Task:
    options = {"steps": 3, "batch_size": 2, "accumulate": 2, "learning_rate": 1e-2, "warmup": 0.4}
    options["weight_decay"] = 0.1
    return Task.model_validate(
        {
            "name": "t",
            "seed": 11,
            "rounds": 2,
            "model": model,
            "lora": LoraSection(rank=4, alpha=8, dropout=0.1 if train.pop("dropout", False) else 0),
            "train": TrainSection(**{**options, **train}),
            "data": {"format": "classification" if model.labels else "instruction"},
        }
    )


def node(folder: Path, what: Task) -> PeftModel:
    """A model as a node has it when its first round begins."""
    model = attach(load_base(folder, what.model), what.lora, what.model)
    write_adapter(model, initial_adapter(model, seed=1))
    for module in model.base_model.modules():
        if isinstance(module, nn.Dropout) and not what.lora.dropout:
            module.p = 0.0  # the base's own
    return model


def rounds(
    folder: Path, what: Task, examples: list[Example], name: str = "north"
) -> tuple[Adapter, list[TrainReport]]:
    """Two rounds of a node on its own."""
    model = node(folder, what)
    reports = [train_round(model, examples, what, number, name) for number in (1, 2)]
    return read_adapter(model), reports


def plain(model: PeftModel, what: Task, examples: list[Example]) -> list[float]:
    """Both rounds as one slow loop: an example at a time, unpadded, every logit computed."""
    train, losses = what.train, []
    stream = SampleStream(len(examples), what.seed, "north")
    for step in range(2 * train.steps):
        if step % train.steps == 0:
            parameters = [p for p in model.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(parameters, weight_decay=train.weight_decay)
        # Six steps, two of warm-up; the cosine would reach zero one step after the last.
        rate = (step + 1) / 2 if step < 2 else 0.5 * (1 + math.cos(math.pi * (step - 1) / 5))
        optimizer.param_groups[0]["lr"] = train.learning_rate * rate
        total, labels = torch.zeros(()), 0
        for number in range(step * train.accumulate, (step + 1) * train.accumulate):
            for index in stream.batch(number, train.batch_size):
                example = examples[index]
                logits = model(input_ids=torch.tensor([example.input_ids])).logits[0]
                if isinstance(example.labels, int):
                    total = total + F.cross_entropy(logits, torch.tensor(example.labels))
                    labels += 1
                    continue
                for position, label in enumerate(example.labels[1:]):
                    if label != IGNORED:
                        total = total + F.cross_entropy(logits[position], torch.tensor(label))
                        labels += 1
        optimizer.zero_grad()
        (total / labels).backward()
        torch.nn.utils.clip_grad_norm_(parameters, train.max_grad_norm)
        optimizer.step()
        losses.append((total / labels).item())
    return losses


@pytest.mark.parametrize(
    ("fixture", "section", "make"),
    [
        ("tiny_causal", CAUSAL, texts),
        ("tiny_gpt2", CAUSAL, texts),
        ("tiny_bert", CLASSIFIER, classified),
    ],
)
def test_two_rounds_equal_one_plain_loop(
    request: pytest.FixtureRequest,
    fixture: str,
    section: ModelSection,
    make: Callable[[], list[Example]],
) -> None:
    folder, what, examples = request.getfixturevalue(fixture), task(section), make()
    adapter, reports = rounds(folder, what, examples)
    model = node(folder, what)
    losses = plain(model, what, examples)
    expected = read_adapter(model)
    assert [reports[0].loss_first, reports[1].loss_last] == pytest.approx(
        [losses[0], losses[-1]], rel=1e-4
    )
    assert reports[0].loss_mean == pytest.approx(sum(losses[:3]) / 3, rel=1e-4)
    for name, factors in adapter.factors.items():
        torch.testing.assert_close(factors.b, expected.factors[name].b, rtol=1e-3, atol=2e-5)
        torch.testing.assert_close(factors.a, expected.factors[name].a, rtol=1e-3, atol=2e-5)
        assert factors.b.abs().max() > 0  # peft#1402
    assert bool(adapter.full) == (section is CLASSIFIER)
    initial = initial_adapter(model, seed=1)
    for name, parameter in adapter.full.items():
        torch.testing.assert_close(parameter, expected.full[name], rtol=1e-3, atol=2e-5)
        assert not torch.equal(parameter, initial.full[name])


def same(one: Adapter, other: Adapter) -> bool:
    return all(
        torch.equal(factors.b, other.factors[name].b)
        and torch.equal(factors.a, other.factors[name].a)
        for name, factors in one.factors.items()
    )


def test_the_same_seed_gives_the_same_bytes(tiny_causal: Path) -> None:
    what = task(dropout=True)
    torch.manual_seed(1)
    first, _ = rounds(tiny_causal, what, texts())
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second, _ = rounds(tiny_causal, what, texts())
    assert same(first, second)
    assert torch.equal(before, torch.get_rng_state())
    other, _ = rounds(tiny_causal, what, texts(), name="south")
    assert not same(first, other)
    without, _ = rounds(tiny_causal, task(), texts())
    assert not same(first, without)  # so dropout was there


def test_a_round_knows_nothing_of_the_ones_before(tiny_causal: Path) -> None:
    what = task(dropout=True)
    model = node(tiny_causal, what)
    train_round(model, texts(), what, 1, "north")
    middle = read_adapter(model)
    train_round(model, texts(), what, 2, "north")
    again = node(tiny_causal, what)
    write_adapter(again, middle)
    train_round(again, texts(), what, 2, "north")
    assert same(read_adapter(model), read_adapter(again))


def test_bfloat16_learns_too_and_weights_stay_float32(tiny_causal: Path) -> None:
    exact, reports = rounds(tiny_causal, task(), texts())
    rough, rough_reports = rounds(tiny_causal, task(precision="bf16"), texts())
    again, _ = rounds(tiny_causal, task(), texts())
    assert same(exact, again)  # the precision of one run is not that of the next
    assert not same(exact, rough)
    assert rough_reports[1].loss_last == pytest.approx(reports[1].loss_last, rel=0.02)
    assert all(factors.b.dtype == torch.float32 for factors in rough.factors.values())


def test_reports(tiny_causal: Path) -> None:
    what, examples, steps = task(), texts(), list[StepReport]()
    model = node(tiny_causal, what)
    report = train_round(model, examples, what, 2, "north", steps.append)
    assert [(step.step, step.steps) for step in steps] == [(1, 3), (2, 3), (3, 3)]
    assert (report.loss_first, report.loss_last) == (steps[0].loss, steps[2].loss)
    assert all(step.tokens_per_second > 0 for step in steps)
    stream = SampleStream(7, 11, "north")
    seen = [examples[i] for number in range(6, 12) for i in stream.batch(number, 2)]
    assert report.tokens == sum(len(example.input_ids) for example in seen)
    assert report.label_tokens == sum(example.label_count for example in seen)
    assert (report.examples, report.steps) == (7, 3)
    assert report.learning_rate == pytest.approx(1e-2 * 0.5 * (1 + math.cos(math.pi * 0.8)))
    assert report.seconds > 0
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_fewer_examples_than_a_batch(tiny_causal: Path) -> None:
    what = task(batch_size=8)
    report = train_round(node(tiny_causal, what), texts(1), what, 1, "north")
    assert report.loss_last < report.loss_first


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_no_step_has_the_rate_zero(name: str) -> None:
    for warmup in (0.0, 0.1, 0.5):
        train = TrainSection.model_validate({"steps": 5, "schedule": name, "warmup": warmup})
        rate = schedule(train, rounds=4)
        rates = [rate(step) / train.learning_rate for step in range(20)]
        assert all(0 < value <= 1 for value in rates)
        rise = int(20 * warmup)
        assert rates[:rise] == pytest.approx([(step + 1) / rise for step in range(rise)])
        assert rates[rise:] == sorted(rates[rise:], reverse=True)
        if name == "constant":
            assert rates[rise:] == [1.0] * (20 - rise)
        else:
            assert rates[-1] < 0.15


def test_a_loss_that_is_not_finite_names_the_step(tiny_causal: Path) -> None:
    what = task()
    model = node(tiny_causal, what)
    steps: list[StepReport] = []

    def poison(report: StepReport) -> None:
        steps.append(report)
        if len(steps) == 2:
            with torch.no_grad():
                next(p for p in model.parameters() if p.requires_grad).fill_(math.inf)

    with pytest.raises(FedloraError, match="node north: the loss of step 3 of round 1 is nan"):
        train_round(model, texts(), what, 1, "north", poison)
    assert len(steps) == 2
    assert not model.training
