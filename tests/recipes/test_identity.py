"""A run is gone on with as it was begun; only waiting times may change."""

from typing import Any

import pytest

from fedlora.recipes.identity import FREE, differences, recipe_fingerprint
from fedlora.recipes.schema import Recipe


def recipe(**changes: Any) -> Recipe:
    content: dict[str, Any] = {
        "name": "ferry",
        "model": {"source": "smollm2-135m"},
        "federation": {"rounds": 3},
        "node": [{"name": "north", "data": "/north.jsonl"}],
    }
    return Recipe.model_validate({**content, **changes})


def test_the_same_recipe_is_the_same() -> None:
    assert differences(recipe(), recipe()) == []
    assert recipe_fingerprint(recipe()) == recipe_fingerprint(recipe())


def test_waiting_times_may_change() -> None:
    patient = recipe(federation={"rounds": 3, "wait": 9.0, "deadline": 9.0, "retries": 9})
    assert differences(recipe(), patient) == []
    assert recipe_fingerprint(recipe()) == recipe_fingerprint(patient)
    assert {place.partition(".")[2] for place in FREE} == {"wait", "deadline", "retries"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "seed: was 0, is 1"),
        ({"train": {"steps": 7}}, "train.steps: was 20, is 7"),
        ({"lora": {"targets": ["q_proj"]}}, 'lora.targets: was "all-linear", is ["q_proj"]'),
        ({"federation": {"rounds": 4}}, "federation.rounds: was 3, is 4"),
        (
            {"node": [{"name": "north", "data": "/south.jsonl"}]},
            'node[0].data: was "/north.jsonl", is "/south.jsonl"',
        ),
    ],
)
def test_F8_everything_else_is_named(changes: dict[str, Any], said: str) -> None:
    assert differences(recipe(), recipe(**changes)) == [said]
    assert recipe_fingerprint(recipe()) != recipe_fingerprint(recipe(**changes))
