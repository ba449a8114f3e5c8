"""A student's training: what it learns, and that it can be cut off anywhere."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedlora.adapters import FedloraError
from fedlora.client.distillation.checkpoints import Checkpoints
from fedlora.client.distillation.loss import Objective
from fedlora.client.distillation.onpolicy import sampled
from fedlora.client.distillation.stored import StoredTeacher, store
from fedlora.client.distillation.teachers import ModelTeacher
from fedlora.client.distillation.training import Plan, Step, distil
from fedlora.models.batches import collate
from fedlora.models.examples import IGNORED, Example
from fedlora.models.losses import label_logits
from fedlora.recipes.schema import TrainSection

from .conftest import small


def plan(steps: int = 6, **options: Any) -> Plan:
    train = TrainSection(steps=steps, batch_size=2, accumulate=2, learning_rate=3e-3, warmup=0.0)
    objective = Objective(options.pop("share", 0.5), 1.0, 7)
    return Plan(train, objective, seed=4, sample_tokens=5, **options)


def weights(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def divergence(student: Any, teacher: Any, examples: list[Example]) -> float:
    batch = collate(examples, 0)
    with torch.no_grad():
        (own, _), (taught, _) = label_logits(student, batch), label_logits(teacher, batch)
    return float(
        (taught.softmax(-1) * (taught.log_softmax(-1) - own.log_softmax(-1))).sum(-1).mean()
    )


def test_the_first_step_is_that_of_a_plain_loop(examples: list[Example]) -> None:
    student, teacher, what = small(1), small(2), plan(steps=1)
    rival, seen = copy.deepcopy(student), []
    distil(student, [ModelTeacher(teacher)], examples, what, on_step=seen.append)
    from fedlora.models.batches import SampleStream

    stream = SampleStream(len(examples), 4, "distillation")
    texts = [examples[i] for number in (0, 1) for i in stream.batch(number, 2)]
    logits, targets = label_logits(rival.train(), collate(texts, 0))
    with torch.no_grad():
        taught, _ = label_logits(teacher, collate(texts, 0))
    kl = F.kl_div(logits.log_softmax(-1), taught.log_softmax(-1), log_target=True, reduction="sum")
    entropy = F.cross_entropy(logits, targets)
    (0.5 * entropy + 0.5 * kl / len(targets)).backward()
    torch.nn.utils.clip_grad_norm_(rival.parameters(), 1.0)
    torch.optim.AdamW(rival.parameters(), lr=seen[0].learning_rate, weight_decay=0.0).step()
    assert seen[0].cross_entropy == pytest.approx(entropy.item(), rel=1e-5)
    assert seen[0].divergence == pytest.approx(kl.item() / len(targets), rel=1e-5)
    for own, other in zip(weights(student), weights(rival), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=2e-5)


def test_the_student_comes_nearer_to_its_teacher(examples: list[Example]) -> None:
    student, teacher = small(1), small(2)
    before = divergence(student, teacher, examples)
    distil(student, [ModelTeacher(teacher)], examples, plan(steps=40, share=1.0))
    assert divergence(student, teacher, examples) < before / 2
    assert not student.training


def test_a_distillation_that_was_cut_off_ends_with_the_same_bytes(
    examples: list[Example], tmp_path: Path
) -> None:
    what = plan(steps=7, on_policy=0.4)
    whole, cut = small(1), small(1)
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    teachers = [ModelTeacher(small(2))]
    undisturbed = Checkpoints(tmp_path / "whole", every=100)
    distil(whole, teachers, examples, what, undisturbed)

    def killed(step: Step) -> None:
        if step.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil(cut, teachers, examples, what, Checkpoints(tmp_path / "cut", every=2), killed)
    again = small(1)  # as a new process has it
    seen: list[Step] = []
    resumed = Checkpoints(tmp_path / "cut", every=2)
    distil(again, teachers, examples, what, resumed, seen.append)
    assert [one.step for one in seen] == [5, 6, 7]
    for own, other in zip(weights(again), weights(whole), strict=True):
        assert torch.equal(own, other)
    losses = [[line["cross_entropy"] for line in one.lines()] for one in (resumed, undisturbed)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 7
    assert any(line["on_policy"] for line in resumed.lines())


def test_a_stored_teacher_says_what_it_would_have_said(
    examples: list[Example], tmp_path: Path
) -> None:
    asked, stored = small(1), small(1)
    store(small(2), examples, 399, 3, tmp_path)
    distil(asked, [ModelTeacher(small(2))], examples, plan())
    distil(stored, [StoredTeacher(tmp_path)], examples, plan())
    for own, other in zip(weights(stored), weights(asked), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-2, atol=1e-3)


def test_a_gate_with_a_worse_teacher_leaves_cross_entropy_alone(examples: list[Example]) -> None:
    good = small(1)
    distil(good, [], examples, plan(steps=30, share=0.0))
    gated, alone = copy.deepcopy(good), copy.deepcopy(good)
    seen: list[Step] = []
    distil(gated, [ModelTeacher(small(9))], examples, plan(gate=True), on_step=seen.append)
    assert all(step.divergence == 0 for step in seen)
    distil(alone, [ModelTeacher(small(9))], examples, plan(), on_step=seen.append)
    assert seen[-1].divergence > 0


def test_what_a_student_writes_goes_on_from_the_prompts(examples: list[Example]) -> None:
    student = small(1).train()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = sampled(student, examples, 5)
    assert student.training
    for own, example in zip(made, examples, strict=True):
        assert not isinstance(own.labels, int)
        assert not isinstance(example.labels, int)
        prompt = sum(label == IGNORED for label in example.labels)
        assert own.input_ids[:prompt] == example.input_ids[:prompt]
        assert own.labels == (*[IGNORED] * prompt, *own.input_ids[prompt:])
        assert 1 <= own.label_count <= 5


def test_a_loss_that_is_not_finite_is_named_by_its_step(examples: list[Example]) -> None:
    student = small(1)
    with torch.no_grad():
        next(student.parameters()).fill_(float("inf"))
    with pytest.raises(FedloraError, match="loss of step 1 is"):
        distil(student, [], examples, plan(share=0.0))
