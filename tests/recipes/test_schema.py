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
