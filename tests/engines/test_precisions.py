"""One federation across precisions: every node's model against dense weights, over whole runs."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from fedlora.adapters import (
    ModelError,
    QuorumError,
    Residual,
    at_width,
    module_of,
    spread_residual,
)
from fedlora.adapters.pooling import spread_adapter
from fedlora.cli import engines
from fedlora.cli.main import app
from fedlora.client.data import NodeData
from fedlora.client.training import train_round
from fedlora.models.holding import holding
from fedlora.models.loading import load_base
from fedlora.models.lora import initial_adapter, lora_layers
from fedlora.models.quantized_model import QuantizedModel
from fedlora.models.tuned import TunedModel
from fedlora.protos import decode
from fedlora.recipes.schema import Recipe
from fedlora.server.rundir import RunDirectory
from fedlora.server.scheduler import Reach
from fedlora.server.subnets import sampler
from fedlora.server.supernets import Supernet
from fedlora.strategies.payloads import read_residual_tensors
from fedlora.strategies.sides import Sides

from .conftest import RecipeOf

GROUP = 16
HOLDINGS = ({}, {"precision": "int8"}, {"precision": "int4"})
X = torch.arange(3, 20)[None]


def quantize(**changes: object) -> dict[str, object]:
    return {"method": "rtn", "group": GROUP, **changes}


def simulate(recipe: Recipe, folder: Path) -> RunDirectory:
    return engines.simulate(recipe, folder / "run", "inprocess", lambda event: None)


def total_residuals(run: RunDirectory) -> dict[str, torch.Tensor]:
    """The exact sum of all that was folded, by adapter, (out, in)."""
    total: dict[str, torch.Tensor] = {}
    for digest in run.heads.record().history:
        for name, residual in run.heads.residuals(digest).items():
            wide = spread_residual(residual, run.recipe.lora.pooling).matrix()
            total[name] = total.get(name, torch.zeros(wide.shape)) + wide
    return total


def dense_logits(run: RunDirectory, subnet: Mapping[str, int] | None) -> torch.Tensor:
    """The head on weights as a node of these widths holds them: everything added, dense."""
    recipe, record = run.recipe, run.heads.record()
    base = load_base(Path(recipe.model.source), recipe.model)
    head = spread_adapter(run.heads.adapter(record.round), recipe.lora.pooling)
    held = store(recipe, max(subnet.values())) if subnet else None
    total = total_residuals(run)
    with torch.no_grad():
        for name, one in {module_of(name)[0]: one for name, one in head.factors.items()}.items():
            own = at_width(name, subnet[name]) if subnet and recipe.quantize.per_width else name
            weight = base.get_submodule(name).weight
            if held and subnet:
                layer = lora_layers(held.model)[name].get_base_layer()
                weight.copy_(layer.dense(subnet[name]))
            change = head.factors[own].matrix() + total.get(own, torch.zeros(one.shape))
            weight.add_(change.float())
        logits: torch.Tensor = base(X).logits
    return logits


def store(recipe: Recipe, bits: int) -> QuantizedModel:
    return QuantizedModel(recipe.model.source, recipe.model, recipe.lora, recipe.quantize, bits)


def side(run: RunDirectory) -> tuple[dict[str, Residual], float]:
    made = Sides(run.heads, run.recipe.quantize.side_rank).of(run.heads.record())
    return read_residual_tensors(decode(made.payload, made.proto.manifest)), made.proto.dropped


def node_logits(run: RunDirectory, precision: str | None, memory: str | None) -> torch.Tensor:
    """What a node computes, with the code that nodes run."""
    recipe, record = run.recipe, run.heads.record()
    adapter = run.heads.adapter(record.round)
    own = holding(recipe.model.source, recipe.task, precision, memory)
    if own.subnet is None:
        tuned = TunedModel(recipe.model.source, recipe.model, recipe.lora)
        tuned.become(adapter, record.history, run.heads.residuals)
        model = tuned.model
    else:
        held = store(recipe, own.widest)
        held.become(adapter, own.subnet, record.history, run.heads.residuals, side(run)[0])
        model = held.model
    with torch.no_grad():
        logits: torch.Tensor = model(X).logits
    return logits


@pytest.mark.parametrize("kind", ["pooled", "plain"])
def test_T10_every_precision_computes_the_exact_head(
    recipe_of: RecipeOf, tmp_path: Path, kind: str
) -> None:
    lora = {"kind": kind, "group": GROUP}
    recipe = recipe_of(holdings=HOLDINGS, lora=lora, quantize=quantize(side_rank=0))
    run = simulate(recipe, tmp_path)
    assert len(run.heads.record().history) == 3  # there is something to fold
    for round in range(1, 4):
        assert run.heads.record(round).proceedings.worst_receipt < 1e-6
    float32 = dense_logits(run, None)
    names = lora_layers(TunedModel(recipe.model.source, recipe.model, recipe.lora).model)
    for node, bits in zip(recipe.node, (None, 8, 4), strict=True):
        subnet = dict.fromkeys(names, bits) if bits else None
        expected = dense_logits(run, subnet)
        made = node_logits(run, node.precision, node.memory)
        torch.testing.assert_close(made, expected, atol=2e-4, rtol=1e-4)
        assert bits is None or float((expected - float32).abs().max()) > 1e-2


def test_T10_what_a_side_path_drops_is_what_it_says(recipe_of: RecipeOf, tmp_path: Path) -> None:
    recipe = recipe_of(holdings=HOLDINGS, quantize=quantize(side_rank=2))
    run = simulate(recipe, tmp_path)
    factors, dropped = side(run)
    total = total_residuals(run)
    lost = sum(float((total[n] - factors[n].matrix()).square().sum()) for n in total)
    whole = sum(float(one.square().sum()) for one in total.values())
    assert dropped == pytest.approx(lost / whole, rel=1e-3)
    assert dropped > 1e-3
    told = [line["nodes"]["birch"]["metrics"]["side_dropped"] for line in run.metrics()[1:3]]
    assert all(0 < one < 1 for one in told)


def test_once_for_all_rounds_are_the_mean_of_those_who_trained_a_width(
    recipe_of: RecipeOf, tmp_path: Path
) -> None:
    widths = quantize(adapters="per-width", widths=[8, 4, 3], side_rank=0, period=8)
    recipe = recipe_of(holdings=HOLDINGS, quantize=widths, federation={"rounds": 2})
    run = simulate(recipe, tmp_path)
    supernet = Supernet(run)
    drawn = sampler(recipe, supernet.modules)
    reaches = {"anchor": Reach(8, 8), "birch": Reach(8, 8), "cedar": Reach(4, 4)}
    subnets = drawn.assign(1, reaches)
    again = QuantizedModel(recipe.model.source, recipe.model, recipe.lora, recipe.quantize, 8)
    updates = {}
    for section in recipe.node:
        start = run.heads.adapter(0)
        again.become(start, subnets[section.name], (), run.heads.residuals, {})
        data = NodeData.load(Path(section.data), None, recipe.task, again.tokenizer, section.name)
        train_round(again.model, data.train, recipe.task, 1, section.name)
        updates[section.name] = len(data.train), again.read()
    head, residuals = run.heads.adapter(1), run.heads.residuals(run.heads.record(1).history[0])
    untrained = set(head.factors)
    for name in head.factors:
        trained = [(n, one) for n, one in updates.values() if name in one.factors]
        if not trained:
            assert torch.equal(head.factors[name].a, run.heads.adapter(0).factors[name].a)
            continue
        untrained.discard(name)
        count = sum(n for n, _ in trained)
        mean = sum(n / count * one.factors[name].matrix() for n, one in trained)
        made = head.factors[name].matrix()
        if name in residuals:
            made = made + residuals[name].matrix()
        assert float((made - mean).norm() / mean.norm()) < 1e-6, name
    assert len(untrained) < len(head.factors) / 2
    assert any(name.endswith("@8") for name in head.factors)
    assert not any(name.endswith("@8") for name in updates["cedar"][1].factors)
    # after the run, any subnet is a model: those of one width, and a mixed one
    for subnet in (
        dict.fromkeys(supernet.modules, 3),
        {name: (8, 4)[i % 2] for i, name in enumerate(sorted(supernet.modules))},
    ):
        with torch.no_grad():
            made = supernet.at(subnet)(X).logits
        torch.testing.assert_close(made, dense_logits(run, subnet), atol=2e-4, rtol=1e-4)
    evaluation = run.metrics()[-1]["nodes"]
    assert {"eval_loss_8bit", "eval_loss_4bit", "eval_loss_3bit"} <= set(
        evaluation["anchor"]["metrics"]
    )
    assert "eval_loss_8bit" not in evaluation["cedar"]["metrics"]


def test_a_subnet_is_searched_and_exported(recipe_of: RecipeOf, tmp_path: Path) -> None:
    widths = quantize(adapters="per-width", widths=[8, 4], side_rank=0)
    recipe = recipe_of(("anchor", "birch"), quantize=widths, federation={"rounds": 1})
    data, out = recipe.node[0].data, tmp_path / "found"
    own = recipe.evaluate.model_copy(update={"data": data})
    run = simulate(recipe.model_copy(update={"evaluate": own}), tmp_path)
    lines = run.metrics()
    (last,) = [one["metrics"] for one in lines if one.get("evaluation") == "coordinator"][1:]
    assert set(last) == {f"eval_{what}_{b}bit" for what in ("loss", "accuracy") for b in (8, 4)}
    (covered,) = [one["subnets"] for one in lines if "subnets" in one]
    assert covered["subnet_drawn"] == 2
    command = ["subnet", "search", str(run.path), "--bits", "5", "--data", data]
    found = CliRunner().invoke(app, [*command, "--evaluations", "8", "--out", str(out), "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["bits"] <= 5
    exported = tmp_path / "model"
    command = ["export", str(run.path), str(exported), "--form", "merged"]
    made = CliRunner().invoke(app, [*command, "--subnet", str(out / "subnet.json")])
    assert made.exit_code == 0, made.output
    subnet = json.loads((out / "subnet.json").read_text())["widths"]
    assert set(subnet.values()) == {8, 4}
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(exported)(X).logits
    torch.testing.assert_close(logits, dense_logits(run, subnet), atol=2e-4, rtol=1e-4)
    # what needs one model for all says how to get one
    for command in (
        ["export", str(run.path), str(tmp_path / "x"), "--form", "adapter", "--bits", "4"],
        ["generate", str(run.path), "Which key?"],
    ):
        refused = CliRunner().invoke(app, command)
        assert "an adapter for each width" in refused.output


def test_memory_decides_the_widths(recipe_of: RecipeOf) -> None:
    recipe = recipe_of(quantize=quantize(), train={"max_length": 16})
    task, source = recipe.task, recipe.model.source
    with pytest.raises(ModelError, match=r"4 bits for all layers need .* more than the 0\.00 GB"):
        holding(source, task, None, "10kB")
    low, high = 10_000, 10_000_000_000
    assert holding(source, task, None, f"{high}B").subnet is None
    while high - low > 1:  # to the byte where 4 bits begin to fit
        middle = (low + high) // 2
        try:
            holding(source, task, None, f"{middle}B")
        except ModelError:
            low = middle
        else:
            high = middle
    seen = []
    for more in (
        0,
        3_000,
        6_000,
        30_000,
        60_000,
        10_000_000,
    ):  # its linears weigh 126 kB in float32
        found = holding(source, task, None, f"{high + more}B")
        bits = found.subnet.values() if found.subnet else [32]
        seen.append((max(bits), min(bits)))
    assert seen[0] == (4, 4)
    assert (8, 4) in seen
    assert (8, 8) in seen
    assert seen[-1] == (32, 32)
    assert seen == sorted(seen)  # more memory, wider


def test_a_mixed_node_keeps_only_what_it_uses(recipe_of: RecipeOf, tmp_path: Path) -> None:
    recipe = recipe_of(quantize=quantize())
    held = store(recipe, 8)
    lean = QuantizedModel(
        recipe.model.source, recipe.model, recipe.lora, recipe.quantize, 8, lean=True
    )
    names = sorted(lora_layers(held.model))
    mixed = {name: (8, 4)[i % 2] for i, name in enumerate(names)}
    adapter = initial_adapter(held.model, 0)
    outputs = []
    for model in (held, lean):
        model.become(adapter, mixed, (), lambda digest: {}, {})
        with torch.no_grad():
            outputs.append(model.model(X).logits)
    assert torch.equal(*outputs)
    stored = {n: layer.get_base_layer().max_bits for n, layer in lora_layers(lean.model).items()}
    assert stored == mixed
    wide = dict.fromkeys(names, 8)
    for model in (held, lean):  # what was given up is read again
        model.become(adapter, wide, (), lambda digest: {}, {})
    with torch.no_grad():
        assert torch.equal(held.model(X).logits, lean.model(X).logits)


def test_a_node_that_holds_no_width_of_the_run_is_turned_away(
    recipe_of: RecipeOf, tmp_path: Path
) -> None:
    widths = quantize(adapters="per-width", widths=[8, 4])
    recipe = recipe_of(holdings=[{"precision": "int3"}], quantize=widths)
    with pytest.raises(QuorumError, match="holds int3, and the narrowest width of this run is 4"):
        simulate(recipe, tmp_path)
