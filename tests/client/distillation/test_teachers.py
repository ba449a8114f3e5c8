"""One model, two adapters: what goes wrong there elsewhere."""

import torch
from peft import PeftModel
from torch.nn import functional as F

from fedlora.client.distillation.hidden import label_hidden, label_targets, output_head
from fedlora.client.distillation.loss import Objective, backward
from fedlora.client.distillation.personal import add_student, merge_student
from fedlora.client.distillation.teachers import STUDENT, AdapterTeacher, teaching
from fedlora.models.batches import collate
from fedlora.models.examples import Example
from fedlora.models.lora import NAME, lora_layers
from fedlora.models.losses import label_logits

from .conftest import adapted, small


def factors(model: PeftModel, name: str) -> dict[str, torch.Tensor]:
    return {
        key: parameter.detach().clone()
        for key, parameter in model.named_parameters()
        if f".{name}." in key
    }


def test_the_teachers_pass_leaves_the_students_dropout_on(
    head: PeftModel, examples: list[Example]
) -> None:
    add_student(head, 4, 0.5, seed=0)
    teacher, batch = AdapterTeacher(head), collate(examples, 0)
    head.train()
    modes = {name: module.training for name, module in head.named_modules()}
    first, again = teacher.soft(batch, []).hidden, teacher.soft(batch, []).hidden
    assert torch.equal(first, again)  # the teacher itself has none
    assert {name: module.training for name, module in head.named_modules()} == modes
    assert not torch.equal(label_hidden(head, batch), label_hidden(head, batch))
    layer = next(iter(lora_layers(head).values()))
    assert layer.lora_dropout[STUDENT].training
    assert layer.active_adapters == [STUDENT]


def test_the_teachers_adapter_never_trains(head: PeftModel, examples: list[Example]) -> None:
    add_student(head, 4, 0.0, seed=0)
    head.add_adapter("late", head.peft_config[NAME])  # as one that comes when training goes on
    teacher, batch = AdapterTeacher(head), collate(examples, 0)
    before = factors(head, NAME), factors(head, "late")
    optimizer = torch.optim.SGD([p for p in head.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        soft, targets = teacher.soft(batch, []), label_targets(batch)
        hidden, weights = label_hidden(head, batch), torch.ones(len(targets))
        backward(hidden, output_head(head), targets, [(soft, weights)], Objective(), len(targets))
        trained = [n for n, p in head.named_parameters() if p.requires_grad]
        assert trained
        assert all(f".{STUDENT}." in name for name in trained)
        assert all(p.grad is None for n, p in head.named_parameters() if f".{STUDENT}." not in n)
        optimizer.step()
    for kept, now in zip(before, (factors(head, NAME), factors(head, "late")), strict=True):
        assert all(torch.equal(kept[name], now[name]) for name in kept)


def test_a_lora_on_the_output_layer_counts(examples: list[Example]) -> None:
    model = adapted(small(1), ("q_proj", "lm_head"))
    add_student(model, 4, 0.0, seed=0)
    with torch.no_grad():  # the student's is another than the teacher's
        model.get_output_embeddings().lora_B[STUDENT].weight.neg_()
    batch = collate(examples, 0)
    with torch.no_grad():
        own, targets = label_logits(model, batch)
        with teaching(model):
            taught, _ = label_logits(model, batch)
        expected = (taught.softmax(-1) * (taught.log_softmax(-1) - own.log_softmax(-1))).sum()
    assert expected > 0.1
    soft = AdapterTeacher(model).soft(batch, [])
    hidden, weights = label_hidden(model, batch), torch.ones(len(targets))
    terms = backward(
        hidden, output_head(model), targets, [(soft, weights)], Objective(1.0, 1.0, 5), 1
    )
    torch.testing.assert_close(terms.divergence, expected.item(), rtol=1e-4, atol=1e-4)
    entropy = F.cross_entropy(own, targets, reduction="sum").item()
    torch.testing.assert_close(terms.cross_entropy, entropy, rtol=1e-5, atol=1e-4)


def update(model: PeftModel, name: str, adapter: str) -> torch.Tensor:
    layer = lora_layers(model)[name]
    b, a = layer.lora_B[adapter].weight, layer.lora_A[adapter].weight
    return (layer.scaling[adapter] * b.double() @ a.double()).detach()


def test_a_student_of_equal_rank_begins_as_the_head(head: PeftModel) -> None:
    add_student(head, 4, 0.0, seed=0)
    for name in lora_layers(head):
        torch.testing.assert_close(update(head, name, STUDENT), update(head, name, NAME))


def test_a_student_of_lower_rank_begins_as_the_nearest(head: PeftModel) -> None:
    add_student(head, 2, 0.0, seed=0)
    for name in lora_layers(head):
        whole = update(head, name, NAME)
        u, s, v = torch.linalg.svd(whole)
        nearest = (u[:, :2] * s[:2]) @ v[:2]
        torch.testing.assert_close(update(head, name, STUDENT), nearest, rtol=1e-4, atol=1e-5)


def test_a_student_of_higher_rank_begins_as_the_head_and_can_learn_more(
    head: PeftModel, examples: list[Example]
) -> None:
    add_student(head, 6, 0.0, seed=0)
    for name, layer in lora_layers(head).items():
        torch.testing.assert_close(update(head, name, STUDENT), update(head, name, NAME))
        assert bool(layer.lora_A[STUDENT].weight[4:].any(dim=1).all())
    logits, targets = label_logits(head, collate(examples, 0))
    F.cross_entropy(logits, targets).backward()
    for layer in lora_layers(head).values():
        assert bool(layer.lora_B[STUDENT].weight.grad[:, 4:].any())


def test_a_merged_student_gives_the_students_logits(
    head: PeftModel, examples: list[Example]
) -> None:
    add_student(head, 2, 0.0, seed=0)
    head.eval()
    ids = torch.tensor([examples[0].input_ids])
    with torch.no_grad():
        expected = head(ids).logits
        merged = merge_student(head)
        torch.testing.assert_close(merged(ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert not any("lora" in name for name in merged.state_dict())
