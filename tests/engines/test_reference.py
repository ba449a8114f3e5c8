"""A run of real models against the obvious: train each node again, and average dense weights."""

import json
from pathlib import Path

import pytest
import torch

from fedlora.cli import engines
from fedlora.client.data import NodeData
from fedlora.client.training import train_round
from fedlora.models.evaluation import evaluate
from fedlora.models.examples import encode
from fedlora.models.files import read_rows
from fedlora.models.lora import lora_layers, read_adapter
from fedlora.models.tuned import TunedModel
from fedlora.recipes.schema import Recipe
from fedlora.server.rundir import RunDirectory

from .conftest import RecipeOf

Dense = dict[str, torch.Tensor]


def follow(tuned: TunedModel, run: RunDirectory, round: int) -> None:
    """Make `tuned` the head of a round."""
    history = run.heads.record(round).history
    tuned.become(run.heads.adapter(round), history, run.heads.residuals)


def effective(tuned: TunedModel) -> Dense:
    """Weight plus adapter of every target module, dense, (out, in), float64."""
    adapter = read_adapter(tuned.model)
    weights = {}
    for name, layer in lora_layers(tuned.model).items():
        weight = layer.get_base_layer().weight.detach().double()
        weights[name] = (weight.T if layer.fan_in_fan_out else weight) + adapter.factors[
            name
        ].matrix()
    return weights


def nodes_again(tuned: TunedModel, run: RunDirectory, round: int) -> list[tuple[int, Dense, Dense]]:
    """Each node's round once more: its examples, effective weights, and fully trained tensors."""
    task, made = run.recipe.task, []
    for section in run.recipe.node:
        follow(tuned, run, round - 1)
        data = NodeData.load(Path(section.data), None, task, tuned.tokenizer, section.name)
        train_round(tuned.model, data.train, task, round, section.name)
        full = {name: one.double() for name, one in read_adapter(tuned.model).full.items()}
        made.append((len(data.train), effective(tuned), full))
    return made


def check(run: RunDirectory) -> None:
    recipe = run.recipe
    tuned = TunedModel(recipe.model.source, recipe.model, recipe.lora)
    for round in range(1, recipe.federation.rounds + 1):
        nodes = nodes_again(tuned, run, round)
        total = sum(examples for examples, _, _ in nodes)
        follow(tuned, run, round)
        head = effective(tuned)
        for name, weight in head.items():
            mean = sum(examples / total * weights[name] for examples, weights, _ in nodes)
            assert float((weight - mean).norm() / mean.norm()) < 1e-6, name
        for name, tensor in read_adapter(tuned.model).full.items():
            mean = sum(examples / total * full[name] for examples, _, full in nodes)
            torch.testing.assert_close(tensor.double(), mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rslora", [False, True])
def test_a_llama_with_grouped_queries(recipe_of: RecipeOf, tmp_path: Path, rslora: bool) -> None:
    recipe = recipe_of(lora={"rslora": rslora}, federation={"rounds": 2})
    check(engines.simulate(recipe, tmp_path / "run", "inprocess", lambda event: None))


def test_a_gpt2_with_transposed_weights(
    recipe_of: RecipeOf, tmp_path: Path, tiny_gpt2: Path
) -> None:
    recipe = with_model(recipe_of(federation={"rounds": 2}), tiny_gpt2)
    check(engines.simulate(recipe, tmp_path / "run", "inprocess", lambda event: None))


def test_a_classifier_with_a_fully_trained_head(
    recipe_of: RecipeOf, tmp_path: Path, tiny_bert: Path
) -> None:
    labels = ("left", "right")
    recipe = with_model(recipe_of(federation={"rounds": 2}), tiny_bert, labels)
    for number, node in enumerate(recipe.node):
        rows = [
            {"text": f"Turn {side}, door {i}", "label": side}
            for i in range(4 + number)
            for side in labels
        ]
        Path(node.data).write_text("\n".join(json.dumps(row) for row in rows))
    run = engines.simulate(recipe, tmp_path / "run", "inprocess", lambda event: None)
    assert set(run.head().adapter.full) == {"classifier.weight", "classifier.bias"}
    check(run)


def with_model(recipe: Recipe, folder: Path, labels: tuple[str, ...] = ()) -> Recipe:
    content = recipe.model_dump()
    content["model"] = {"source": str(folder)}
    if labels:
        content["model"] |= {"task": "sequence-classification", "labels": labels}
        content["data"]["format"] = "classification"
    return Recipe.model_validate(content)


def test_the_coordinators_evaluation_is_that_of_each_head(
    recipe_of: RecipeOf, tmp_path: Path
) -> None:
    recipe = recipe_of()
    content = recipe.model_dump()
    content["evaluate"] = {"data": recipe.node[0].data, "batch_size": 4}
    run = engines.simulate(
        Recipe.model_validate(content), tmp_path / "run", "inprocess", lambda event: None
    )
    found = {
        line["round"]: line["metrics"]["eval_loss"]  # type: ignore[index]
        for line in run.metrics()
        if line.get("evaluation") == "coordinator"
    }
    assert set(found) == {0, 1, 2, 3}
    tuned = TunedModel(recipe.model.source, recipe.model, recipe.lora)
    rows = read_rows(Path(recipe.node[0].data), recipe.data)
    examples = encode(rows, tuned.tokenizer, recipe.train.max_length).examples
    for round, loss in found.items():
        follow(tuned, run, int(str(round)))
        assert evaluate(tuned.model, examples, 4).loss == pytest.approx(loss, rel=1e-6)
