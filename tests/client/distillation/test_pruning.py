"""A pruned student is the teacher with masks at 0; importance is the derivative by these masks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from fedlora.adapters import DataError, ModelError
from fedlora.client.distillation.layout import StudentShape, layout_of
from fedlora.client.distillation.pruning import Importance, importance, prune
from fedlora.models.batches import collate
from fedlora.models.loading import load_base
from fedlora.models.losses import label_count, loss_sum
from fedlora.recipes.schema import ModelSection

from .families import FAMILIES, SIZES, random_model, texts

WHOLE = StudentShape(layers=4, hidden=48, groups=3, ffn=64)
IDS = torch.randint(3, 120, (2, 12), generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=FAMILIES)
def teacher(request: pytest.FixtureRequest) -> PreTrainedModel:
    return random_model(FAMILIES[request.param]())


def scores(seed: int = 0) -> Importance:
    """Random ones, so that every choice is tried."""
    draw = torch.Generator().manual_seed(seed)
    return Importance(
        layers=torch.rand(4, generator=draw),
        hidden=torch.rand(48, generator=draw),
        groups=torch.rand(4, 3, generator=draw),
        ffn=torch.rand(4, 64, generator=draw),
    )


def kept(row: Tensor, count: int) -> Tensor:
    """1 for the largest, 0 for the rest; of each row."""
    mask = torch.zeros_like(row)
    return mask.scatter(-1, row.topk(count).indices, 1.0)


def masks(found: Importance, shape: StudentShape) -> Importance:
    return Importance(
        kept(found.layers, shape.layers),
        kept(found.hidden, shape.hidden),
        kept(found.groups, shape.groups),
        kept(found.ffn, shape.ffn),
    )


@contextmanager
def masked(model: Any, mask: Importance) -> Iterator[None]:
    """The teacher, multiplied by masks wherever something flows through them."""
    handles = [model.model.embed_tokens.register_forward_hook(lambda m, i, o: o * mask.hidden)]
    for number, layer in enumerate(model.model.layers):

        def changed(m: Any, inputs: Any, output: Tensor, n: int = number) -> Tensor:
            return inputs[0] + mask.layers[n] * (output - inputs[0])

        def attended(m: Any, inputs: Any, n: int = number) -> tuple[Tensor]:
            width = inputs[0].shape[-1] // len(mask.groups[n])
            return (inputs[0] * mask.groups[n].repeat_interleave(width),)

        def fed(m: Any, inputs: Any, n: int = number) -> tuple[Tensor]:
            return (inputs[0] * mask.ffn[n],)

        handles += [
            layer.register_forward_hook(changed),
            layer.self_attn.o_proj.register_forward_pre_hook(attended),
            layer.mlp.down_proj.register_forward_pre_hook(fed),
            layer.self_attn.o_proj.register_forward_hook(lambda m, i, o: o * mask.hidden),
            layer.mlp.down_proj.register_forward_hook(lambda m, i, o: o * mask.hidden),
        ]
    yield
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize(
    "shape",
    [
        StudentShape(4, 48, 1, 64),
        StudentShape(4, 48, 3, 20),
        StudentShape(2, 48, 3, 64),
        StudentShape(4, 36, 3, 64),
        StudentShape(3, 24, 2, 32),
    ],
    ids=["groups", "ffn", "layers", "hidden", "all"],
)
def test_the_student_is_the_teacher_with_masks(
    teacher: PreTrainedModel, shape: StudentShape
) -> None:
    student = prune(teacher, scores(), shape)
    assert layout_of(student).shape == shape
    with torch.inference_mode(), masked(teacher, masks(scores(), shape)):
        expected = teacher(IDS).logits
    with torch.inference_mode():
        torch.testing.assert_close(student(IDS).logits, expected, atol=1e-5, rtol=1e-5)


def test_nothing_pruned_is_the_teacher(teacher: PreTrainedModel) -> None:
    student = prune(teacher, scores(), WHOLE)
    with torch.inference_mode():
        assert torch.equal(student(IDS).logits, teacher(IDS).logits)
    theirs = {parameter.data_ptr() for parameter in teacher.parameters()}
    assert not any(parameter.data_ptr() in theirs for parameter in student.parameters())


def test_a_student_opens_again(teacher: PreTrainedModel, tmp_path: Path) -> None:
    student = prune(teacher, scores(), StudentShape(3, 24, 2, 32))
    tied = teacher.config.tie_word_embeddings
    assert (student.lm_head.weight is student.model.embed_tokens.weight) == tied
    assert all(p.device.type == "cpu" and p.requires_grad for p in student.parameters())
    student.save_pretrained(tmp_path)
    with torch.inference_mode():
        again = AutoModelForCausalLM.from_pretrained(tmp_path)
        torch.testing.assert_close(again(IDS).logits, student(IDS).logits)
        assert torch.equal(
            load_base(tmp_path, ModelSection(source="x"))(IDS).logits, again(IDS).logits
        )
    generated = again.generate(IDS[:1], max_new_tokens=3, do_sample=False)
    assert generated.shape[1] <= IDS.shape[1] + 3


def test_importance_is_the_derivative_by_masks(teacher: PreTrainedModel) -> None:
    examples = texts()
    found = importance(teacher, examples)
    total = [torch.zeros(4), torch.zeros(48), torch.zeros(4, 3), torch.zeros(4, 64)]
    for example in examples:
        ones = [torch.ones_like(part, requires_grad=True) for part in total]
        batch = collate([example], 0)
        with masked(teacher, Importance(*ones)):
            loss = loss_sum(teacher, batch) / label_count(batch)
        for part, gradient in zip(total, torch.autograd.grad(loss, ones), strict=True):
            part.add_(gradient.abs() / len(examples))
    for row in (2, 3):
        total[row] = total[row] / total[row].norm(dim=1, keepdim=True)
    for name, expected in zip(vars(found), total, strict=True):
        torch.testing.assert_close(getattr(found, name), expected, atol=1e-6, rtol=1e-4)


def test_the_model_is_left_as_it_was() -> None:
    model: Any = random_model(FAMILIES["llama, tied"]()).train()
    model.model.norm.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    importance(model, texts())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    fixed = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert fixed == ["model.norm.weight"]
    assert model.training
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    assert not any(getattr(m, name) for m in (model.model, *model.model.layers) for name in hooks)


def test_what_the_loss_does_not_need_goes_first() -> None:
    model: Any = random_model(LlamaConfig(**SIZES))
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[:, 10:40] = 0
        model.model.layers[1].self_attn.o_proj.weight[:, 16:32] = 0  # of the second group
    found = importance(model, texts())
    assert found.ffn[2, 10:40].sum() == 0
    assert found.groups[1].argmin() == 1
    student = prune(model, Importance(found.layers, found.hidden, found.groups, found.ffn), WHOLE)
    assert torch.equal(student(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize(
    "shape",
    [
        StudentShape(4, 48, 2, 64),
        StudentShape(4, 48, 3, 32),
        StudentShape(3, 48, 3, 64),
        StudentShape(4, 24, 3, 64),
    ],
    ids=["groups", "ffn", "layers", "hidden"],
)
def test_what_is_kept_is_better_than_chance(shape: StudentShape) -> None:
    """Of a model that has learned something, and is still learning."""
    model: Any = random_model(LlamaConfig(**SIZES))
    examples = texts(count=12)
    batch = collate(examples, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(20):
        optimizer.zero_grad()
        (loss_sum(model, batch) / label_count(batch)).backward()
        optimizer.step()

    def loss(chosen: Importance) -> float:
        with torch.inference_mode():
            return loss_sum(prune(model, chosen, shape), batch).item()

    assert loss(importance(model, examples)) < min(loss(scores(seed)) for seed in range(5))


def test_refusals(teacher: PreTrainedModel) -> None:
    with pytest.raises(DataError, match="calibration example"):
        importance(teacher, [])
    for shape in (StudentShape(5, 48, 3, 64), StudentShape(4, 48, 0, 64)):
        with pytest.raises(ModelError, match="expected 1 to"):
            prune(teacher, scores(), shape)


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    teacher = random_model(LlamaConfig(**SIZES))
    with pytest.raises(ModelError, match=r"(?s)hidden width 40.*not a valid model.*not a multiple"):
        prune(teacher, scores(), StudentShape(4, 40, 3, 64))
