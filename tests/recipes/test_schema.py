from typing import Any

import pytest
from pydantic import ValidationError

from fedlora.recipes.schema import LoraSection, ModelSection, Recipe


def recipe(**sections: Any) -> Recipe:
    return Recipe.model_validate({"name": "r", "model": {"source": "m"}, **sections})


@pytest.mark.parametrize(
    ("section", "scale"),
    [
        (LoraSection(rank=8, alpha=16), 2.0),
        (LoraSection(rank=16, alpha=8), 0.5),
        (LoraSection(rank=16, alpha=8, rslora=True), 2.0),
    ],
)
def test_scale(section: LoraSection, scale: float) -> None:
    assert section.scale == scale


def test_the_task_is_what_nodes_may_know() -> None:
    nodes = [{"name": "a", "data": "secret.jsonl"}]
    task = recipe(node=nodes, federation={"rounds": 7}, train={"steps": 5}).task
    assert (task.rounds, task.train.steps) == (7, 5)
    assert "secret" not in task.model_dump_json()


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        ("causal-lm", ("a", "b")),
        ("sequence-classification", ()),
        ("sequence-classification", ("a",)),
        ("sequence-classification", ("a", "a")),
    ],
)
def test_labels_fit_the_task(task: Any, labels: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError, match="labels"):
        ModelSection(source="m", task=task, labels=labels)


def test_format_fits_the_task() -> None:
    classifier = {"source": "m", "task": "sequence-classification", "labels": ["a", "b"]}
    assert recipe(model=classifier, data={"format": "classification"})
    with pytest.raises(ValidationError, match=r"data\.format"):
        recipe(model=classifier)
    with pytest.raises(ValidationError, match=r"data\.format"):
        recipe(data={"format": "classification"})


def test_node_names_differ_and_are_safe_file_names() -> None:
    with pytest.raises(ValidationError, match="same `name`"):
        recipe(node=[{"name": "a", "data": "x"}, {"name": "a", "data": "y"}])
    for name in ("", "../a", "a/b", ".hidden", "a b", "x" * 65):
        with pytest.raises(ValidationError):
            recipe(node=[{"name": name, "data": "x"}])


def test_sections_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        recipe().name = "other"


MIXED: dict[str, Any] = {"federation": {"strategy": "fedmkt"}, "public": {"data": "open.jsonl"}}


def test_a_cross_model_task_says_how_public_text_is_learned_and_not_where_it_lies() -> None:
    made = recipe(**MIXED, node=[{"name": "a", "data": "x", "model": "tiny"}])
    assert made.task.public is not None
    assert (made.task.public.top_k, made.task.public.kd) == (32, 0.1)
    assert "open.jsonl" not in made.task.model_dump_json()
    assert recipe().task.public is None


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"federation": {"strategy": "fedmkt"}}, r"needs a \[public\] section"),
        ({"public": {"data": "x"}}, "averages adapters of one model"),
        ({"node": [{"name": "a", "data": "x", "model": "m"}]}, "names a `model` of its own"),
        ({**MIXED, "lora": {"kind": "pooled"}}, "pooled"),
        ({**MIXED, "quantize": {"adapters": "per-width"}}, "per-width"),
        ({**MIXED, "node": [{"name": "a", "data": "x", "precision": "int8"}]}, "smaller `model`"),
        ({**MIXED, "node": [{"name": "a", "data": "x", "memory": "1GB"}]}, "smaller `model`"),
        (
            {
                **MIXED,
                "model": {
                    "source": "m",
                    "task": "sequence-classification",
                    "labels": ["a", "b"],
                },
                "data": {"format": "classification"},
            },
            "causal-lm",
        ),
    ],
)
def test_a_cross_model_run_has_all_it_needs_and_nothing_else(
    sections: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        recipe(**sections)
