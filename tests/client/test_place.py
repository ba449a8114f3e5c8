"""S12: from a coordinator a node takes the name of a model, never a place."""

import pytest

from fedlora.adapters import ModelError
from fedlora.client.place import NodePlace, place_of
from fedlora.recipes.schema import ModelSection, Task


def task(source: str) -> Task:
    return Task(name="run", rounds=1, model=ModelSection(source=source))


def place(**more: object) -> NodePlace:
    return place_of({"name": "clinic", "data": "/notes.jsonl", "state": "/state", **more})


@pytest.mark.parametrize(
    "source",
    [
        "/etc/passwd",
        "../../model",
        "./model",
        "~/model",
        "..",
        ".",
        ".hidden",
        "https://example.org/model",
        "file:///model",
        "owner/name/deeper",
        "owner/../name",
        "owner/..",
        "owner\\name",
        "model\n",
        " ",
    ],
)
def test_S12_a_path_or_an_address_is_refused(source: str) -> None:
    with pytest.raises(ModelError, match="never a path or an address"):
        place().source(task(source))


@pytest.mark.parametrize("source", ["smollm2-135m", "HuggingFaceTB/SmolLM2-135M", "gpt2"])
def test_a_name_is_taken(source: str) -> None:
    assert place().source(task(source)) == source


def test_where_the_node_itself_has_the_model_goes_before() -> None:
    assert place(model="/models/mine").source(task("/etc/passwd")) == "/models/mine"
